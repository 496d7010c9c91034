/* base/mem.c -- all allocations of the library: counts them, and fails them for tests.
 *
 * Three groups of functions: allocation (ch__malloc and others, callers everywhere),
 * statistics and fault injection (ch__mem_*, callers are tests), and arenas, whose blocks are
 * freed together.
 *
 * Invariants:
 *   1. Every block is counted in n_requested when it is requested, and in n_ended when it is
 *      refused or freed. Their difference is the number of blocks in use.
 *   2. A size of 0 gives a block, so NULL always means that memory is exhausted.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "base/mem.h"

#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/counter.h"

static const size_t huge_page_bytes = (size_t)2 << 20;

/* Statistics. No other memory access is ordered by them, so all accesses are relaxed. */
static ch_counter           n_requested;  /* requested allocations, including refused ones */
static ch_counter           n_ended;      /* refused or freed allocations */
static atomic_int_least64_t n_tried;      /* allocations requested while a failure was set */
static atomic_int_least64_t fail_from;    /* value of n_tried; 0: off */
static atomic_int_least64_t fail_at;      /* value of n_tried; 0: off */
static atomic_bool          is_watched;   /* bytes are counted */
static atomic_int_least64_t n_bytes;      /* bytes in use, less those when the watch began */
static atomic_int_least64_t n_bytes_peak; /* maximum of n_bytes */

static int64_t get(const atomic_int_least64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* Returns true if a test has requested that this allocation fails. */
static bool is_to_fail(void)
{
    int64_t from = get(&fail_from), at = get(&fail_at), nth;

    if (from == 0 && at == 0)
        return false;
    nth = atomic_fetch_add_explicit(&n_tried, 1, memory_order_relaxed) + 1;
    return nth == at || (from != 0 && nth >= from);
}

/* Counts an allocation. Returns false if it must fail. The C library has the same limit on
 * sizes. It is repeated here because sanitizers abort where malloc would return NULL. */
static bool may_allocate(size_t bytes)
{
    ch__counter_add(&n_requested, 1);
    return !is_to_fail() && bytes <= PTRDIFF_MAX;
}

static bool is_watching(void)
{
    return atomic_load_explicit(&is_watched, memory_order_relaxed);
}

static void count_bytes(int64_t change)
{
    int64_t now = atomic_fetch_add_explicit(&n_bytes, change, memory_order_relaxed) + change;
    int64_t peak = get(&n_bytes_peak);

    while (now > peak &&
           !atomic_compare_exchange_weak_explicit(&n_bytes_peak, &peak, now,
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
}

/* Counts the result of an allocation that may_allocate has counted: NULL if it failed. Returns
 * p. */
static void *count_block(void *p)
{
    if (p == NULL)
        ch__counter_add(&n_ended, 1);
    else if (is_watching())
        count_bytes((int64_t)malloc_usable_size(p));
    return p;
}

/* Returns a size of at least 1, because malloc(0) may return NULL, which means out of memory
 * here. */
static size_t nonzero(size_t bytes)
{
    return bytes > 0 ? bytes : 1;
}

void *ch__malloc(size_t bytes)
{
    return count_block(may_allocate(bytes) ? malloc(nonzero(bytes)) : NULL);
}

/* Blocks up to this size come from malloc and are cleared here: malloc takes them from the
 * calling thread's cache of freed blocks (tcache), and glibc's calloc does not use that
 * cache. */
enum { CH_TCACHE_BYTES = 1024 };

void *ch__calloc(size_t n, size_t bytes)
{
    size_t total;
    void  *p = NULL;

    if (__builtin_mul_overflow(n, bytes, &total))
        total = SIZE_MAX;
    if (may_allocate(total)) {
        if (total > CH_TCACHE_BYTES)
            p = calloc(1, total);
        else if ((p = malloc(nonzero(total))) != NULL)
            memset(p, 0, total);
    }
    return count_block(p);
}

void *ch__realloc(void *p, size_t bytes)
{
    size_t before = is_watching() ? malloc_usable_size(p) : 0;
    void  *q;

    if (p == NULL)
        return ch__malloc(bytes);
    q = may_allocate(bytes) ? realloc(p, nonzero(bytes)) : NULL;
    ch__counter_add(&n_ended, 1); /* the old block is freed, or the new block was refused */
    if (q != NULL && is_watching())
        count_bytes((int64_t)malloc_usable_size(q) - (int64_t)before);
    return q;
}

void ch__free(void *p)
{
    if (p == NULL)
        return;
    ch__counter_add(&n_ended, 1);
    if (is_watching())
        count_bytes(-(int64_t)malloc_usable_size(p));
    free(p);
}

char *ch__strdup(const char *s)
{
    size_t bytes = strlen(s) + 1;
    char  *copy = ch__malloc(bytes);

    return copy != NULL ? memcpy(copy, s, bytes) : NULL;
}

/* Rounds the size up to whole cache lines, so that vector code may read to the end of the last
 * line. */
void *ch__alloc_untouched(size_t bytes)
{
    void *p = NULL;
    bool  is_huge = bytes >= huge_page_bytes;

    if (!may_allocate(bytes))
        return count_block(NULL);
    bytes = ch__aligned(nonzero(bytes));
    if (posix_memalign(&p, is_huge ? huge_page_bytes : CH_ALIGN, bytes) != 0)
        return count_block(NULL);
    if (is_huge) /* only advice: the kernel may use small pages */
        (void)madvise(p, bytes / huge_page_bytes * huge_page_bytes, MADV_HUGEPAGE);
    return count_block(p);
}

void *ch__alloc_aligned(size_t bytes)
{
    void *p = ch__alloc_untouched(bytes);

    if (p != NULL) /* touches every page now, so that steps have no page faults */
        memset(p, 0, ch__aligned(nonzero(bytes)));
    return p;
}

void ch__free_aligned(void *p)
{
    ch__free(p);
}

/* *p is a T * of the caller, not a void *. It is copied with memcpy, because of strict
 * aliasing. */
bool ch__grow(void **p, int *cap, int need, size_t size)
{
    int64_t want = *cap > 0 ? (int64_t)*cap * 2 : 8, bytes;
    void   *block;

    if (need <= *cap)
        return true;
    if (want < need)
        want = need;
    if (want > INT_MAX)
        want = INT_MAX;
    if (!ch__mul_size(want, (int64_t)size, &bytes))
        return false;
    memcpy(&block, p, sizeof(block));
    block = ch__realloc(block, (size_t)bytes);
    if (block == NULL)
        return false;
    memcpy(p, &block, sizeof(block));
    *cap = (int)want;
    return true;
}

int64_t ch__mem_allocs(void)
{
    return ch__counter_sum(&n_requested);
}

int64_t ch__mem_live(void)
{
    return ch__counter_sum(&n_requested) - ch__counter_sum(&n_ended);
}

void ch__mem_watch(bool on)
{
    atomic_store_explicit(&n_bytes, 0, memory_order_relaxed);
    atomic_store_explicit(&n_bytes_peak, 0, memory_order_relaxed);
    atomic_store_explicit(&is_watched, on, memory_order_relaxed);
}

int64_t ch__mem_peak(void)
{
    return get(&n_bytes_peak);
}

void ch__mem_fail_from(int64_t n)
{
    atomic_store_explicit(&fail_from, n > 0 ? get(&n_tried) + n : 0, memory_order_relaxed);
}

void ch__mem_fail_at(int64_t n)
{
    atomic_store_explicit(&fail_at, n > 0 ? get(&n_tried) + n : 0, memory_order_relaxed);
}

/* The size of blocks doubles up to ARENA_MOST_BYTES: small arenas use little memory, large
 * arenas make few allocations. */
enum { ARENA_GRAIN = 16, ARENA_FIRST_BYTES = 1 << 10, ARENA_MOST_BYTES = 1 << 20 };

typedef struct ch_arena_block {
    struct ch_arena_block *prev;
    size_t                 used, cap; /* bytes of data */
    alignas(ARENA_GRAIN) unsigned char data[];
} ch_arena_block;

static ch_arena_block *arena_block_new(ch_arena_block *prev, size_t need)
{
    size_t          cap = prev != NULL ? prev->cap * 2 : ARENA_FIRST_BYTES;
    ch_arena_block *b;

    if (cap > ARENA_MOST_BYTES)
        cap = ARENA_MOST_BYTES;
    if (cap < need)
        cap = need;
    b = ch__calloc(1, sizeof(*b) + cap);
    if (b == NULL)
        return NULL;
    b->prev = prev;
    b->cap = cap;
    return b;
}

void *ch__arena_alloc(ch_arena *a, size_t bytes)
{
    ch_arena_block *b = a->last;
    void           *p;

    if (bytes > PTRDIFF_MAX - sizeof(*b) - ARENA_GRAIN)
        return NULL;
    bytes = (nonzero(bytes) + ARENA_GRAIN - 1) / ARENA_GRAIN * ARENA_GRAIN;
    if (b == NULL || bytes > b->cap - b->used) {
        b = arena_block_new(b, bytes);
        if (b == NULL)
            return NULL;
        a->last = b;
    }
    p = b->data + b->used;
    b->used += bytes;
    a->bytes += bytes;
    return p;
}

void *ch__arena_copy(ch_arena *a, const void *data, size_t bytes)
{
    void *copy = ch__arena_alloc(a, bytes);

    if (copy != NULL && bytes > 0)
        memcpy(copy, data, bytes);
    return copy;
}

char *ch__arena_strdup(ch_arena *a, const char *s)
{
    return s != NULL ? ch__arena_copy(a, s, strlen(s) + 1) : NULL;
}

void ch__arena_drop(ch_arena *a)
{
    ch_arena_block *prev;

    for (ch_arena_block *b = a->last; b != NULL; b = prev) {
        prev = b->prev;
        ch__free(b);
    }
    *a = (ch_arena){0};
}

/* ---- the process ---- */

/* Reads the kernel's description of this process into `text`, cut to `size` bytes. */
static void read_status(char *text, size_t size)
{
    int     fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, size - 1) : 0;

    text[n > 0 ? n : 0] = '\0';
    if (fd >= 0)
        close(fd);
}

/* Prefers /proc, because the peak of getrusage includes the program that this process ran
 * before exec. */
int64_t ch__peak_bytes(void)
{
    char          text[4096];
    const char   *line;
    long          kib;
    struct rusage use;

    read_status(text, sizeof(text));
    line = strstr(text, "VmHWM:");
    if (line != NULL && sscanf(line, "VmHWM: %ld kB", &kib) == 1)
        return (int64_t)kib * 1024;
    return getrusage(RUSAGE_SELF, &use) == 0 ? (int64_t)use.ru_maxrss * 1024 : 0;
}
