/* bench/allreduce.c -- all-reduce of an f32 array in place, by threads of a process.
 *
 * Measures the collective without a step. The limit is the necessary work: each of two threads
 * adds its half of both arrays and writes the sums to both, after a single exchange of a cache
 * line. The peer is Open MPI with two processes on this machine.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/mem.h"
#include "base/thread.h"
#include "bench.h"
#include "collective/group.h"
#include "kernel/accumulate.h"
#include "must.h"

enum { MOST = 4, CORES = 2, SPIN = 4000 };

typedef struct job job;

typedef struct member {
    _Alignas(CH_ALIGN) job *job;
    int             me;
    ch_thread      *thread;
    const void     *in;
    void           *out;
    _Atomic int64_t came; /* barriers reached; used by the limit */
    ch_gate         done;
} member;

/* Every member except the first is a thread that waits for work. */
struct job {
    ch_group  *group;
    int        n;
    ch_addend  array;
    ch_addends sum;
    member     member[MOST];
    void (*work)(member *m, int64_t n);
    int64_t n_times;
    ch_gate posted;
    bool    is_over;
};

static void sum_up(member *m, int64_t n)
{
    while (n-- > 0)
        must(ch__group_all_reduce(m->job->group, m->me, &m->job->sum, &m->in, &m->out));
}

/* A barrier of two members. */
static void exchange(member *m)
{
    member *other = &m->job->member[1 - m->me];
    int64_t k = atomic_load_explicit(&m->came, memory_order_relaxed) + 1;

    atomic_store_explicit(&m->came, k, memory_order_release);
    while (atomic_load_explicit(&other->came, memory_order_acquire) < k)
        ch__relax();
}

static void add_half(member *m, int64_t n)
{
    const job *j = m->job;
    int64_t    from = j->array.count * m->me / 2, to = j->array.count * (m->me + 1) / 2;
    float     *x = (float *)j->member[0].out + from, *y = (float *)j->member[1].out + from;

    while (n-- > 0) {
        exchange(m);
        ch__accumulate_all(CH_F32, to - from, 2, (const void *[]){x, y}, 2, (void *[]){x, y},
                           1);
    }
}

static void member_main(void *arg)
{
    member *m = arg;

    for (unsigned seen = 0;; seen++) {
        ch__gate_idle(&m->job->posted, seen, SPIN);
        if (m->job->is_over)
            return;
        m->job->work(m, m->job->n_times);
        ch__gate_open(&m->done);
    }
}

static void all_work(job *j, void (*work)(member *, int64_t), int64_t n)
{
    unsigned seen = atomic_load(&j->posted);

    j->work = work;
    j->n_times = n;
    ch__gate_open(&j->posted);
    work(&j->member[0], n);
    for (int r = 1; r < j->n; r++)
        ch__gate_idle(&j->member[r].done, seen, SPIN);
}

static void run_sums(void *arg, int64_t n)
{
    all_work(arg, sum_up, n);
}

static void run_limit(void *arg, int64_t n)
{
    all_work(arg, add_half, n);
}

/* Checks a sum of small integers, which is exact. Leaves zeros, which repeated sums do not
 * change. */
static bool adds_right(void *arg, char *why, size_t size)
{
    job    *j = arg;
    int64_t times = j->n * (j->n + 1) / 2;

    for (int r = 0; r < j->n; r++)
        for (int64_t i = 0; i < j->array.count; i++)
            ((float *)j->member[r].out)[i] = (float)((i % 1000) * (r + 1));
    run_sums(j, 1);
    for (int r = 0; r < j->n; r++)
        for (int64_t i = 0; i < j->array.count; i++)
            if (((float *)j->member[r].out)[i] != (float)(i % 1000 * times)) {
                snprintf(why, size, "element %lld of replica %d is wrong", (long long)i, r);
                return false;
            }
    for (int r = 0; r < j->n; r++)
        memset(j->member[r].out, 0, (size_t)j->array.count * sizeof(float));
    return true;
}

static job *new_job(int n, int64_t bytes)
{
    job *j = ch__alloc_aligned(sizeof(*j));

    if (j == NULL)
        exit(1);
    j->n = n;
    j->array = (ch_addend){CH_F32, bytes / (int64_t)sizeof(float)};
    j->sum = (ch_addends){.op = CH_SUM, .n = 1, .array = &j->array};
    must(ch__group_new(&(ch_group_options){.n = n, .spin = n <= CORES}, &j->group));
    for (int r = 0; r < n; r++) {
        member *m = &j->member[r];

        m->job = j;
        m->me = r;
        m->in = m->out = ch__alloc_aligned((size_t)bytes);
        if (m->out == NULL)
            exit(1);
        if (r > 0)
            must(ch__thread_start("replica", member_main, m, &m->thread));
    }
    return j;
}

static void drop_job(job *j)
{
    j->is_over = true;
    ch__gate_open(&j->posted);
    for (int r = 0; r < j->n; r++) {
        ch__thread_join(j->member[r].thread);
        ch__free_aligned(j->member[r].out);
    }
    ch__group_free(j->group);
    ch__free_aligned(j);
}

static void measure(bench *b, int n, int64_t bytes, const char *size)
{
    char       name[64], command[512];
    bench_case c = {.name = name,
                    .unit = "us",
                    .better = BENCH_LOWER,
                    .scale = 1e6,
                    .ours = {.run = run_sums},
                    .check = adds_right};

    snprintf(name, sizeof(name), "%s, %d replicas", size, n);
    snprintf(
        command, sizeof(command),
        "d=$(mktemp -d) && mpicc -O2 -o $d/peer $PEERS/mpi_allreduce.c && "
        /* If it forwarded signals, mpirun would print a line for every SIGCONT. */
        "mpirun --allow-run-as-root --mca ess_base_forward_signals none --bind-to core -n 2 "
        "$d/peer %lld; rm -r $d",
        (long long)bytes);
    if (!bench_wants(b, name))
        return;
    c.ours.arg = c.limit.arg = new_job(n, bytes);
    if (n == 2) {
        c.peer[0] = (bench_side){.name = "Open MPI, 2 processes", .command = command};
        c.limit.run = run_limit;
    }
    bench_run(b, &c);
    drop_job(c.ours.arg);
}

int main(int argc, char **argv)
{
    static const struct {
        int64_t     bytes;
        const char *name;
    } size[] = {{8, "8 B"},
                {64 << 10, "64 KiB"},
                {1 << 20, "1 MiB"},
                {4 << 20, "4 MiB"},
                {128 << 20, "128 MiB"}};
    bench *b = bench_open("allreduce", argc, argv);

    for (int n = 2; n <= MOST; n += 2)
        for (int i = 0; i < 5; i++)
            measure(b, n, size[i].bytes, size[i].name);
    return bench_close(b);
}
