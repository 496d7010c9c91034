/* base/mem.h -- allocates all memory of the library.
 *
 * All allocations go through this file, so that they are counted and tests can make the n-th
 * allocation fail. Nothing else in src/ may call malloc; tools/check-banned enforces this.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CH_ALIGN 64 /* bytes: a cache line, and the widest vector */

/* As in the C library. These functions return NULL if memory is exhausted and set no error
 * message: the caller must call ch__fail_memory, which names the object. */
void *ch__malloc(size_t bytes);
void *ch__calloc(size_t n, size_t bytes); /* zeroed; NULL if the product overflows */
void *ch__realloc(void *p, size_t bytes); /* on failure, p stays valid and unchanged */
void  ch__free(void *p);                  /* p may be NULL */
char *ch__strdup(const char *s);

/* Returns a zeroed block, aligned to CH_ALIGN, of which every page has been touched. For arenas
 * and tensor buffers. Large blocks use huge pages if the kernel grants them. The caller must
 * free the block with ch__free_aligned. Returns NULL if memory is exhausted. */
void *ch__alloc_aligned(size_t bytes);
/* Like ch__alloc_aligned, but does not touch the pages; the contents are undefined. For large
 * arenas of which a program may use only the beginning. */
void *ch__alloc_untouched(size_t bytes);
void  ch__free_aligned(void *p); /* p may be NULL */

/* Grows the array *p, of elements of `size` bytes, to at least `need` elements. At least
 * doubles the capacity *cap. Returns false if memory is exhausted; *p and *cap are unchanged
 * then. */
bool ch__grow(void **p, int *cap, int need, size_t size);

/* For tests. Returns the number of allocations since the process began, including refused
 * ones. */
int64_t ch__mem_allocs(void);
/* Returns the number of blocks that are in use. */
int64_t ch__mem_live(void);
/* Begins or ends the counting of bytes. No thread may allocate during the call. */
void ch__mem_watch(bool on);
/* Returns the largest number of bytes in use since ch__mem_watch(true), less the bytes that
 * were in use at that call. */
int64_t ch__mem_peak(void);
/* Makes the n-th allocation from now (1: the next) and all later ones fail; 0: ends this. */
void ch__mem_fail_from(int64_t n);
/* Makes only the n-th allocation from now fail; 0: ends this. */
void ch__mem_fail_at(int64_t n);

/* Returns the peak resident memory of the process in bytes; 0: the system does not report
 * it. */
int64_t ch__peak_bytes(void);

/* An arena: allocations that are freed together. Zero-initialise an arena before its first
 * use. */
typedef struct ch_arena {
    struct ch_arena_block *last;
    size_t                 bytes; /* allocated from the arena, without unused memory */
} ch_arena;

/* Return zeroed memory (or a copy), aligned to 16 bytes, or NULL if memory is exhausted. The
 * arena owns the memory. */
void *ch__arena_alloc(ch_arena *a, size_t bytes);
void *ch__arena_copy(ch_arena *a, const void *data, size_t bytes);
char *ch__arena_strdup(ch_arena *a, const char *s); /* NULL if s is NULL */
/* Frees all memory of the arena. The arena is empty afterwards and may be used again. */
void ch__arena_drop(ch_arena *a);

/* Returns n / unit, rounded up. */
static inline int64_t ch__units(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit;
}
/* Returns n, rounded up to a multiple of `unit`. */
static inline int64_t ch__round_up(int64_t n, int64_t unit)
{
    return ch__units(n, unit) * unit;
}
/* Returns `bytes`, rounded up to a multiple of CH_ALIGN. */
static inline size_t ch__aligned(size_t bytes)
{
    return (bytes + CH_ALIGN - 1) / CH_ALIGN * CH_ALIGN;
}
static inline int64_t ch__min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
/* Computes *out = a * b. Returns false if the product overflows. */
static inline bool ch__mul_size(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

#endif
