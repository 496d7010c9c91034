/* kernel/philox.h -- random numbers that are a function of a key and a position.
 *
 * Philox4x32-10 (Salmon and others, "Parallel random numbers: as easy as 1, 2, 3", 2011): a
 * block of four words from a counter and a key. There is no state: what a position holds does
 * not depend on who asks for it, in which order, or on how many threads.
 *
 * Words come in groups of CH_PHILOX_GROUP: the 16 blocks 16 g .. 16 g + 15, first the words 0
 * of all of them, then the words 1 and so on, so that 16 lanes can work side by side. A draw
 * takes one word, or two that are 16 apart, or four; so a group holds 64, 32 or 16 draws.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_PHILOX_H
#define KERNEL_PHILOX_H

#include <stddef.h>
#include <stdint.h>

#include "kernel/simd.h"

enum {
    CH_PHILOX_LANES = 16,
    CH_PHILOX_GROUP = 64,   /* words */
    CH_PHILOX_CHUNK = 1024, /* words that callers draw at a time: they fit the first cache */
};

/* A stream: the key, and the upper half of the counter; the lower half is the block's number.
 */
typedef struct ch_philox {
    uint32_t key[2], high[2];
} ch_philox;

/* What tells one stream from another. */
typedef struct ch_philox_name {
    uint64_t seed; /* of the run */
    uint64_t own;  /* the op's own seed */
    int64_t  step;
    int64_t  iteration; /* of the loops around the op; 0: none */
    uint32_t ordinal;   /* of the op in its step */
    uint32_t replica;
} ch_philox_name;

/* One block. */
void ch__philox_block(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
/* The stream of a name: different for different names of one pair of seeds, always. */
ch_philox ch__philox_stream(const ch_philox_name *name);

/* The standard normal distribution's quantile of a uniform number in (0, 1) is what normals are
 * made of: from + width * u, with u in the middle of one of 2^32 (f64: 2^52) equal parts of
 * (0, 1), and 2 from + width = 1. Nothing lies further out than 6.7 (f32: 6.4). */
typedef struct ch_normal {
    double mean, deviation, from, width;
} ch_normal;

typedef struct ch_philox_table {
    void (*words)(const ch_philox *p, int64_t group, int64_t n_groups, uint32_t *w);

    /* lo + u * size, at most top; u is a multiple of 2^-24 (f64: 2^-52) in [0, 1). */
    void (*uniform_f32)(int64_t n, const uint32_t *w, float lo, float size, float top,
                        float *out);
    void (*uniform_f64)(int64_t n, const uint32_t *w, double lo, double size, double top,
                        double *out);
    void (*normal_f32)(int64_t n, const uint32_t *w, const ch_normal *p, float *out);
    void (*normal_f64)(int64_t n, const uint32_t *w, const ch_normal *p, double *out);

    /* x * scale where the word is at least `least`, else 0; out may be x. */
    void (*keep_f32)(int64_t n, const uint32_t *w, uint32_t least, float scale, const float *x,
                     float *out);
    void (*keep_f64)(int64_t n, const uint32_t *w, uint32_t least, double scale,
                     const double *x, double *out);
    /* `one` where the word is at most `most`, else 0; by bytes of an element. */
    void (*pick_1)(int64_t n, const uint32_t *w, uint32_t most, uint8_t one, uint8_t *out);
    void (*pick_2)(int64_t n, const uint32_t *w, uint32_t most, uint16_t one, uint16_t *out);
    void (*pick_4)(int64_t n, const uint32_t *w, uint32_t most, uint32_t one, uint32_t *out);
    void (*pick_8)(int64_t n, const uint32_t *w, uint32_t most, uint64_t one, uint64_t *out);
} ch_philox_table;

CH_SIMD_DECLARE(ch_philox_table, ch__philox_table)

/* The table of the level in use; and of any level up to ch__simd_best, for tests. */
const ch_philox_table *ch__philox(void);
const ch_philox_table *ch__philox_at(ch_simd level);

/* Whole numbers in [0, range), range > 0, each as likely as the others to within 2^-32 of
 * itself. Draws of two words serve ranges up to 2^32, draws of four all. */
void ch__philox_below_2(int64_t n, const uint32_t *w, uint64_t range, uint64_t *out);
void ch__philox_below_4(int64_t n, const uint32_t *w, uint64_t range, uint64_t *out);

/* The numbers 0 .. n - 1 in an order that the stream decides. */
void ch__philox_permutation(const ch_philox *p, int64_t n, int64_t *out);

#endif
