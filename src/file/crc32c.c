/* file/crc32c.c -- CRC-32C by table, by the crc32 instruction, and by carry-less products.
 *
 * The file has a variant for each kind of CPU. The first call of ch__crc32c builds the tables
 * and chooses a variant; `best` points to it. The readers and writers of TFRecord files
 * are the main callers.
 *
 * A message is a polynomial over GF(2), with its first bit as the highest power. The checksum
 * is the remainder of that polynomial modulo P. All registers hold reflected polynomials: the
 * lowest bit is the highest power. The fast variants use two facts:
 *
 *   1. The crc32 instruction processes 8 bytes with a latency of 3 cycles, and another can
 *      begin in every cycle. So a message is cut into thirds, which are processed in parallel.
 *      A remainder is shifted over the n bytes after it by a product with x^8n mod P.
 *   2. In a long message, 128 bits a can be folded into the 128 bits that lie d bits later:
 *      a x^d is high(a) (x^(d+64) mod P) + low(a) (x^d mod P), which fits in 128 bits again.
 *
 * A carry-less product of reflected numbers is shifted by one bit, and the crc32 instruction
 * multiplies by x^32. For this reason the powers below are 31 higher or 33 lower.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "file/crc32c.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/config.h"

#define POLY 0x82f63b78u /* P, reflected, without its highest term */

/* ---- tables ---- */

enum {
    SLICES = 8,
    MAX_THIRD_WORDS = 256, /* most words of 8 bytes in a third */
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
/* [k][b]: remainder of byte b, followed by k zero bytes */
static uint32_t slice[SLICES][256];
static uint32_t shift_words[2 * MAX_THIRD_WORDS + 1]; /* [n]: x^(64n - 33) mod P */

/* The variant in use. Initially a function that chooses the variant. */
static uint32_t              choose_and_run(uint32_t crc, const void *data, size_t n);
static _Atomic(ch_crc32c_fn) best = choose_and_run;

/* Returns crc * x^8 mod P. */
static uint32_t shift_byte(uint32_t crc)
{
    return (crc >> 8) ^ slice[0][crc & 0xff];
}

static void make_tables(void)
{
    uint32_t power = 0x80000000u; /* x^0 */

    for (uint32_t b = 0; b < 256; b++) {
        uint32_t crc = b;

        for (int i = 0; i < 8; i++)
            crc = (crc >> 1) ^ (crc & 1 ? POLY : 0);
        slice[0][b] = crc;
    }
    for (int k = 1; k < SLICES; k++)
        for (int b = 0; b < 256; b++)
            slice[k][b] = shift_byte(slice[k - 1][b]);
    for (int i = 0; i < 31; i++) /* 31 = 64 - 33 */
        power = (power >> 1) ^ (power & 1 ? POLY : 0);
    for (int n = 1; n <= 2 * MAX_THIRD_WORDS; n++) {
        shift_words[n] = power;
        for (int i = 0; i < 8; i++)
            power = shift_byte(power);
    }
}

static uint64_t load64(const unsigned char *p)
{
    uint64_t x;

    memcpy(&x, p, sizeof(x));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    x = __builtin_bswap64(x);
#endif
    return x;
}

/* The portable variant: 8 bytes at a time, with a table for each byte. */
static uint32_t by_table(uint32_t crc, const void *data, size_t n)
{
    const unsigned char *p = data;

    crc = ~crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t x = load64(p) ^ crc;

        crc = 0;
        for (int k = 0; k < SLICES; k++)
            crc ^= slice[SLICES - 1 - k][x >> 8 * k & 0xff];
    }
    for (; n > 0; n--)
        crc = shift_byte(crc ^ *p++);
    return ~crc;
}

/* ---- x86 ---- */

#if defined(__x86_64__)
#include <immintrin.h>

/* The AVX target makes the compiler use VEX encodings. Old SSE encodings after wide vector
 * instructions would be about a hundred times slower. */
#define AVX    __attribute__((target("avx,sse4.2,pclmul")))
#define AVX512 __attribute__((target("sse4.2,pclmul,avx512f,avx512vl,vpclmulqdq")))

/* Processes n bytes in order by the crc32 instruction, for data too short for thirds. Does not
 * complement the remainder at the beginning or the end. */
AVX static uint64_t by_instruction(uint64_t crc, const unsigned char *p, size_t n)
{
    for (; n >= 8; n -= 8, p += 8)
        crc = _mm_crc32_u64(crc, load64(p));
    for (; n > 0; n--)
        crc = _mm_crc32_u8((uint32_t)crc, *p++);
    return crc;
}

/* Returns crc * x^(64 * words - 33), not reduced. The crc32 instruction reduces it. */
AVX static uint64_t shift(uint64_t crc, size_t words)
{
    __m128i a = _mm_cvtsi64_si128((long long)crc);
    __m128i k = _mm_cvtsi64_si128((long long)shift_words[words]);

    return (uint64_t)_mm_cvtsi128_si64(_mm_clmulepi64_si128(a, k, 0));
}

/* Processes 24 * words bytes as three thirds. The last word of the third third also takes in
 * the remainders of the other two, shifted to its position. */
AVX static uint64_t three_thirds(uint64_t crc, const unsigned char *p, size_t words)
{
    const unsigned char *q = p + 8 * words, *r = q + 8 * words;
    uint64_t             a = crc, b = 0, c = 0;

    for (size_t i = 0; i + 1 < words; i++) {
        a = _mm_crc32_u64(a, load64(p + 8 * i));
        b = _mm_crc32_u64(b, load64(q + 8 * i));
        c = _mm_crc32_u64(c, load64(r + 8 * i));
    }
    a = _mm_crc32_u64(a, load64(q - 8));
    b = _mm_crc32_u64(b, load64(r - 8));
    return _mm_crc32_u64(c, load64(r + 8 * words - 8) ^ shift(a, 2 * words) ^ shift(b, words));
}

AVX static uint32_t by_thirds(uint32_t given, const void *data, size_t n)
{
    const unsigned char *p = data;
    uint64_t             crc = ~given;

    while (n >= 72) {
        size_t words = n / 24 < MAX_THIRD_WORDS ? n / 24 : MAX_THIRD_WORDS;

        crc = three_thirds(crc, p, words);
        p += 24 * words;
        n -= 24 * words;
    }
    return ~(uint32_t)by_instruction(crc, p, n);
}

/* Folds a over d bits into b. k holds x^(d+31) mod P for the high half and x^(d-33) mod P for
 * the low half. */
AVX512 static inline __m512i fold512(__m512i a, __m512i k, __m512i b)
{
    __m512i high = _mm512_clmulepi64_epi128(a, k, 0x00);
    __m512i low = _mm512_clmulepi64_epi128(a, k, 0x11);

    return _mm512_ternarylogic_epi64(high, low, b, 0x96); /* high ^ low ^ b */
}

AVX512 static inline __m512i fold_by(uint32_t high, uint32_t low)
{
    return _mm512_broadcast_i32x4(_mm_setr_epi32((int)high, 0, (int)low, 0));
}

/* Processes 256 bytes at a time in four registers, then 64 in a single register. n must be at
 * least 256. */
AVX512 static uint32_t fold_all(uint32_t given, const unsigned char *p, size_t n)
{
    const __m512i over_256 = fold_by(0xdcb17aa4u, 0xb9e02b86u); /* d = 2048 */
    const __m512i over_64 = fold_by(0x740eef02u, 0x9e4addf8u);  /* d = 512 */

    __m512i a = _mm512_xor_si512(_mm512_loadu_si512(p),
                                 _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~given)));
    __m512i b = _mm512_loadu_si512(p + 64);
    __m512i c = _mm512_loadu_si512(p + 128);
    __m512i d = _mm512_loadu_si512(p + 192);
    for (p += 256, n -= 256; n >= 256; p += 256, n -= 256) {
        a = fold512(a, over_256, _mm512_loadu_si512(p));
        b = fold512(b, over_256, _mm512_loadu_si512(p + 64));
        c = fold512(c, over_256, _mm512_loadu_si512(p + 128));
        d = fold512(d, over_256, _mm512_loadu_si512(p + 192));
    }
    b = fold512(a, over_64, b);
    c = fold512(b, over_64, c);
    d = fold512(c, over_64, d);
    for (; n >= 64; p += 64, n -= 64)
        d = fold512(d, over_64, _mm512_loadu_si512(p));
    /* The 64 bytes in d have the same remainder as all bytes before p. */
    unsigned char rest[64];
    _mm512_storeu_si512(rest, d);
    return ~(uint32_t)by_instruction(by_instruction(0, rest, sizeof(rest)), p, n);
}

static uint32_t by_folding(uint32_t crc, const void *data, size_t n)
{
    return n < 256 ? by_thirds(crc, data, n) : fold_all(crc, data, n);
}

static bool can_avx(void)
{
    return __builtin_cpu_supports("avx") && __builtin_cpu_supports("sse4.2") &&
           __builtin_cpu_supports("pclmul");
}

static bool can_avx512(void)
{
    return can_avx() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("vpclmulqdq");
}
#endif

/* ---- arm64 ---- */

#if defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <sys/auxv.h>

#define ARM_HWCAP_CRC32 (1ul << 7)

/* clang's header hides the intrinsics unless the whole file is compiled for them */
#if defined(__clang__)
#define CRC       __attribute__((target("crc")))
#define __crc32cd __builtin_arm_crc32cd
#define __crc32cb __builtin_arm_crc32cb
#else
#define CRC __attribute__((target("+crc")))
#endif

CRC static uint32_t by_arm(uint32_t crc, const void *data, size_t n)
{
    const unsigned char *p = data;

    crc = ~crc;
    for (; n >= 8; n -= 8, p += 8)
        crc = __crc32cd(crc, load64(p));
    for (; n > 0; n--)
        crc = __crc32cb(crc, *p++);
    return ~crc;
}

static bool can_arm(void)
{
    return (getauxval(AT_HWCAP) & ARM_HWCAP_CRC32) != 0;
}
#endif

/* ---- choosing a variant ---- */

static bool always(void)
{
    return true;
}

/* `simd` is the lowest value of the setting `simd` that allows the variant. */
static const struct variant {
    const char  *name, *simd;
    ch_crc32c_fn run;
    bool (*can)(void);
} variants[] = {
    {"table", "base", by_table, always},
#if defined(__x86_64__)
    {"thirds", "avx2", by_thirds, can_avx},
    {"folding", "avx512", by_folding, can_avx512},
#elif defined(__aarch64__) && defined(__linux__)
    {"arm", "avx2", by_arm, can_arm},
#endif
};

static void choose(void)
{
    const char  *simd = ch__config()->simd;
    ch_crc32c_fn chosen = by_table;

    make_tables();
    for (size_t i = 0; i < sizeof(variants) / sizeof(*variants); i++) {
        if (variants[i].can())
            chosen = variants[i].run;
        if (strcmp(simd, variants[i].simd) == 0)
            break;
    }
    atomic_store_explicit(&best, chosen, memory_order_release); /* release: after the tables */
}

static uint32_t choose_and_run(uint32_t crc, const void *data, size_t n)
{
    pthread_once(&once, choose);
    return atomic_load_explicit(&best, memory_order_acquire)(crc, data, n);
}

bool ch__crc32c_variant(int i, const char **name, ch_crc32c_fn *run)
{
    if (i >= (int)(sizeof(variants) / sizeof(*variants)))
        return false;
    pthread_once(&once, choose);
    *name = variants[i].name;
    *run = variants[i].can() ? variants[i].run : NULL;
    return true;
}

uint32_t ch__crc32c(uint32_t crc, const void *data, size_t n)
{
    return atomic_load_explicit(&best, memory_order_acquire)(crc, data, n);
}
