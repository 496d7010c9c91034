/* base/mem.h -- all memory of the library comes from here.
 *
 * One door, so that it can be counted and so that tests can make the n-th allocation fail
 * (PROMISES F15). Nothing else in src/ calls malloc; tools/check-banned holds it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CH_ALIGN 64 /* a cache line, and the widest vector */

/* NULL when out of memory; ch__fail is the caller's, who knows what it was for. */
void *ch__malloc(size_t bytes);
void *ch__calloc(size_t n, size_t bytes); /* zeroed; NULL if the product overflows */
void *ch__realloc(void *p, size_t bytes); /* p keeps its contents on failure */
void  ch__free(void *p);                  /* NULL is fine */
char *ch__strdup(const char *s);

/* CH_ALIGN-aligned, zeroed, every page touched: for arenas and tensor buffers.
 * Large blocks are asked for as huge pages. */
void *ch__alloc_aligned(size_t bytes);
/* Returns a block like the one above, but touches no page of it; its contents are undefined. For
 * arenas of which a program may use only the beginning of a large buffer. */
void *ch__alloc_untouched(size_t bytes);
void  ch__free_aligned(void *p);

/* Grows *p (of elements of `size` bytes) so that it holds at least `need`; doubles.
 * Returns false and leaves all as it was when out of memory. */
bool ch__grow(void **p, int *cap, int need, size_t size);

/* What tests see. Allocations since the process began, and those still held. */
int64_t ch__mem_allocs(void);
int64_t ch__mem_live(void);
/* Bytes held at most since the watch began, above those that were held then. Nobody may allocate
 * while it is turned on or off. */
void    ch__mem_watch(bool on);
int64_t ch__mem_most(void);
/* Makes the n-th allocation from now (1 is the next) and all after it fail; 0 ends it. */
void ch__mem_fail_from(int64_t n);
/* Makes just the n-th fail; 0 ends it. */
void ch__mem_fail_at(int64_t n);

/* The most memory that the process ever held, as the system counts it; 0: it does not say. */
int64_t ch__peak_bytes(void);

/* An arena: allocations that die together. Zero-initialise one to begin. */
typedef struct ch_arena {
    struct ch_arena_block *last;
    size_t                 bytes; /* handed out */
} ch_arena;

void *ch__arena_alloc(ch_arena *a, size_t bytes); /* zeroed, 16-byte aligned; NULL: no memory */
void *ch__arena_copy(ch_arena *a, const void *data, size_t bytes);
char *ch__arena_strdup(ch_arena *a, const char *s); /* NULL gives NULL */
void  ch__arena_drop(ch_arena *a);                  /* all of it; the arena is empty again */

/* Sizes. How many units n takes; n as a multiple of the unit; bytes as one of CH_ALIGN. */
static inline int64_t ch__units(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit;
}
static inline int64_t ch__round_up(int64_t n, int64_t unit)
{
    return ch__units(n, unit) * unit;
}
static inline size_t ch__aligned(size_t bytes)
{
    return (bytes + CH_ALIGN - 1) / CH_ALIGN * CH_ALIGN;
}
static inline int64_t ch__least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
/* Overflow-checked: false on overflow. */
static inline bool ch__mul_size(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

#endif
