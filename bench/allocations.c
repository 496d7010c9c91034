/* bench/allocations.c -- counts all allocations of the process: library, engines, libc.
 *
 * The malloc of a program replaces the malloc of libc for all loaded libraries. The functions
 * here count a call and pass it on to glibc.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "bench.h"

/* Threads use counters in different cache lines, because a shared counter would slow them
 * down. */
enum { N_COUNTERS = 64 };

static struct {
    _Alignas(64) atomic_int_least64_t n;
} count[N_COUNTERS];

static atomic_int n_threads;
static _Thread_local int
    own; /* 1 + the index of this thread's counter; 0 before its first allocation */

int64_t bench_allocations(void)
{
    int64_t sum = 0;

    for (int i = 0; i < N_COUNTERS; i++)
        sum += atomic_load_explicit(&count[i].n, memory_order_relaxed);
    return sum;
}

static void add_one(void)
{
    if (own == 0)
        own = 1 + atomic_fetch_add_explicit(&n_threads, 1, memory_order_relaxed) % N_COUNTERS;
    atomic_fetch_add_explicit(&count[own - 1].n, 1, memory_order_relaxed);
}

/* The functions of glibc, under their internal names. */
void *__libc_malloc(size_t bytes);                     /* NOLINT */
void *__libc_calloc(size_t n, size_t bytes);           /* NOLINT */
void *__libc_realloc(void *p, size_t bytes);           /* NOLINT */
void *__libc_memalign(size_t alignment, size_t bytes); /* NOLINT */

/* Must be visible, or loaded libraries would not call these functions. */
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
