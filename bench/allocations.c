/* bench/allocations.c -- counts what anyone in the process allocates: the library, its engines, libc.
 *
 * A program's own malloc takes the place of libc's for all that is loaded with it; these count and pass on.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "bench.h"

static atomic_int_least64_t count;

int64_t bench_allocations(void)
{
    return atomic_load_explicit(&count, memory_order_relaxed);
}

static void add_one(void)
{
    atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
}

/* glibc's own, under the names that it keeps for this. */
void *__libc_malloc(size_t bytes);                     /* NOLINT */
void *__libc_calloc(size_t n, size_t bytes);           /* NOLINT */
void *__libc_realloc(void *p, size_t bytes);           /* NOLINT */
void *__libc_memalign(size_t alignment, size_t bytes); /* NOLINT */

/* Else only this program would call them, and not what it loads. */
#define SHOWN __attribute__((visibility("default")))

SHOWN void *malloc(size_t bytes);
SHOWN void *calloc(size_t n, size_t bytes);
SHOWN void *realloc(void *p, size_t bytes);
SHOWN void *aligned_alloc(size_t alignment, size_t bytes);
SHOWN void *memalign(size_t alignment, size_t bytes);
SHOWN int   posix_memalign(void **out, size_t alignment, size_t bytes);

void *malloc(size_t bytes)
{
    add_one();
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    add_one();
    return __libc_calloc(n, bytes);
}

void *realloc(void *p, size_t bytes)
{
    add_one();
    return __libc_realloc(p, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    add_one();
    return __libc_memalign(alignment, bytes);
}

void *memalign(size_t alignment, size_t bytes)
{
    add_one();
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    void *p;

    add_one();
    p = __libc_memalign(alignment, bytes);
    if (p == NULL)
        return ENOMEM;
    *out = p;
    return 0;
}
