/* bench/machine.c -- the speed of this machine: the limits of the other benchmarks.
 *
 * Measures memory traffic and matrix products on a single core, and the time in which two
 * threads on two cores exchange a word.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* CPU sets */
#include <cblas.h>
#include <linux/futex.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bench.h"

/* Moving bytes */

typedef struct block {
    size_t n; /* floats */
    float *a, *b;
} block;

static block block_new(size_t bytes)
{
    block k = {.n = bytes / sizeof(float), .a = malloc(bytes), .b = malloc(bytes)};

    if (k.a == NULL || k.b == NULL)
        exit(1);
    for (size_t i = 0; i < k.n; i++) {
        k.a[i] = 1;
        k.b[i] = 0x1p-20f; /* small, so that sums stay finite */
    }
    return k;
}

static void block_free(block *k)
{
    free(k->a);
    free(k->b);
}

static void copy(void *arg, int64_t n)
{
    block *k = arg;

    while (n-- > 0) {
        memcpy(k->a, k->b, k->n * sizeof(float));
        __asm__ volatile("" ::: "memory"); /* the compiler must not omit a copy */
    }
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#endif
static void
add_once(float *restrict a, const float *restrict b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        a[i] += b[i];
}

static void add(void *arg, int64_t n)
{
    block *k = arg;

    while (n-- > 0)
        add_once(k->a, k->b, k->n);
}

/* a and b have `bytes` each. The figure counts them once. */
static void run_bytes(bench *b, const char *name, void (*run)(void *, int64_t), size_t bytes)
{
    if (!bench_wants(b, name))
        return;
    block k = block_new(bytes);

    bench_run(b, &(bench_case){.name = name,
                               .unit = "GB/s",
                               .better = BENCH_HIGHER,
                               .scale = 1e-9 * (double)bytes,
                               .ours = {.run = run, .arg = &k}});
    block_free(&k);
}

/* Multiplying */

typedef struct product {
    int    size;
    float *a, *b, *c;
} product;

static void sgemm(void *arg, int64_t n)
{
    product *p = arg;

    while (n-- > 0)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, p->size, p->size, p->size, 1,
                    p->a, p->size, p->b, p->size, 0, p->c, p->size);
}

/* Row i of a is all i, and column j of b is all j, so c[i][j] must be size * i * j, which is
 * small enough to be exact. */
static bool sgemm_is_right(void *arg, char *why, size_t size)
{
    product *p = arg;

    sgemm(p, 1);
    for (int i = 0; i < p->size; i += 97)
        for (int j = 0; j < p->size; j += 89) {
            float is = p->c[i * p->size + j], want = (float)(p->size * (i % 7) * (j % 5));

            if (is != want) {
                snprintf(why, size, "c[%d][%d] is %g, want %g", i, j, is, want);
                return false;
            }
        }
    return true;
}

static void run_sgemm(bench *b, const char *name, int size)
{
    size_t  count = (size_t)size * (size_t)size;
    product p = {size, malloc(4 * count), malloc(4 * count), malloc(4 * count)};

    if (p.a == NULL || p.b == NULL || p.c == NULL)
        exit(1);
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j++) {
            p.a[i * size + j] = (float)(i % 7);
            p.b[i * size + j] = (float)(j % 5);
        }
    openblas_set_num_threads(1);
    bench_run(b, &(bench_case){.name = name,
                               .unit = "GFLOP/s",
                               .better = BENCH_HIGHER,
                               .scale = 2e-9 * pow(size, 3),
                               .ours = {.run = sgemm, .arg = &p},
                               .check = sgemm_is_right});
    free(p.a);
    free(p.b);
    free(p.c);
}

/* Exchanging a word. The sender writes odd numbers, and the other thread replies with even
 * ones. */

typedef struct table {
    _Alignas(64) atomic_uint ball;
    bool    parks; /* waits in the kernel; false: spins */
    int64_t n;
} table;

static void wait_for(table *t, unsigned want)
{
    unsigned seen;

    while ((seen = atomic_load(&t->ball)) != want)
        if (t->parks)
            syscall(SYS_futex, &t->ball, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void hit(table *t, unsigned value)
{
    atomic_store(&t->ball, value);
    if (t->parks)
        syscall(SYS_futex, &t->ball, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Pins the thread to the i-th core that the process may use. The two threads use different
 * cores. */
static void stay_on(int i)
{
    cpu_set_t may, one;

    sched_getaffinity(0, sizeof(may), &may);
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &may) && i-- == 0)
            CPU_SET(core, &one);
    pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
}

static void *answer(void *arg)
{
    table *t = arg;

    stay_on(1);
    for (int64_t i = 0; i < t->n; i++) {
        wait_for(t, (unsigned)(2 * i + 1));
        hit(t, (unsigned)(2 * i + 2));
    }
    return NULL;
}

static void ping_pong(void *arg, int64_t n)
{
    table    *t = arg;
    pthread_t other;
    cpu_set_t before;

    atomic_store(&t->ball, 0);
    t->n = n;
    if (pthread_create(&other, NULL, answer, t) != 0)
        exit(1);
    pthread_getaffinity_np(pthread_self(), sizeof(before), &before);
    stay_on(0);
    for (int64_t i = 0; i < n; i++) {
        hit(t, (unsigned)(2 * i + 1));
        wait_for(t, (unsigned)(2 * i + 2));
    }
    pthread_setaffinity_np(pthread_self(), sizeof(before), &before);
    pthread_join(other, NULL);
}

static void run_ping_pong(bench *b, const char *name, bool parks)
{
    table t = {.parks = parks};

    bench_run(b, &(bench_case){.name = name,
                               .unit = "us",
                               .scale = 1e6,
                               .ours = {.run = ping_pong, .arg = &t}});
}

int main(int argc, char **argv)
{
    bench *b = bench_open("machine", argc, argv);

    run_bytes(b, "memcpy, 128 MiB", copy, 128 << 20);
    run_bytes(b, "a += b, 128 MiB", add, 128 << 20);
    run_bytes(b, "a += b, 1 MiB", add, 1 << 20);
    run_sgemm(b, "sgemm 1024, 1 thread", 1024);
    if (sysconf(_SC_NPROCESSORS_ONLN) > 1)
        run_ping_pong(b, "ping-pong, spinning", false);
    run_ping_pong(b, "ping-pong, futex", true);
    return bench_close(b);
}
