/* kernel/engine.c -- oneDNN as a guest.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* RTLD_DEFAULT, syscall */
#include "kernel/engine.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/config.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"

#if CH_HAVE_ONEDNN

enum { MAX_LANES = 8 };

/* What one thread needs while it runs a primitive: objects that carry addresses. */
typedef struct lane {
    atomic_bool   is_taken;
    dnnl_stream_t stream;
    dnnl_memory_t memory[CH_DNN_MAX_ARGS + 1]; /* the last is the scratch */
} lane;

struct ch_dnn {
    dnnl_primitive_t   primitive;
    int                n_args, n_lanes;
    int                arg[CH_DNN_MAX_ARGS + 1];
    dnnl_memory_desc_t md[CH_DNN_MAX_ARGS + 1];
    size_t             scratch_bytes;
    lane              *lane;
};

static dnnl_engine_t  engine; /* NULL: oneDNN could not make one */
static pthread_once_t engine_once = PTHREAD_ONCE_INIT;
static enum { TILES_NONE, TILES_HIDDEN, TILES_SHOWN } tiles;
static pthread_once_t tiles_once = PTHREAD_ONCE_INIT;
static int (*omp_threads)(void); /* NULL: oneDNN was built without OpenMP */
static void (*omp_set_threads)(int);

/* The OpenMP that oneDNN runs on is whichever the process has loaded; asking for its symbols
 * at run time finds that one, where linking one of our own choice might not. */
static void start(void)
{
    void *get = dlsym(RTLD_DEFAULT, "omp_get_max_threads");
    void *set = dlsym(RTLD_DEFAULT, "omp_set_num_threads");

    if (get != NULL && set != NULL) {
        memcpy(&omp_threads, &get, sizeof(omp_threads));
        memcpy(&omp_set_threads, &set, sizeof(omp_set_threads));
    }
    if (dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success)
        engine = NULL;
}

bool ch__onednn_is_on(void)
{
    if (!ch__config()->engines)
        return false;
    pthread_once(&engine_once, start);
    return engine != NULL;
}

/* This thread's OpenMP runs alone from here to guard_leave(what this returned). */
static int guard_enter(void)
{
    int before = omp_threads != NULL ? omp_threads() : 1;

    if (before != 1)
        omp_set_threads(1);
    return before;
}

static void guard_leave(int before)
{
    if (before != 1)
        omp_set_threads(before);
}

static ch_status fail(dnnl_status_t rc, const char *what)
{
    switch (rc) {
    case dnnl_out_of_memory:
        return ch__fail_memory(what);
    case dnnl_unimplemented:
        return ch__fail(CH_UNIMPLEMENTED, "%s: oneDNN has none for this type or CPU", what);
    default:
        return ch__fail(CH_INTERNAL, "%s: oneDNN failed with status %d", what, (int)rc);
    }
}

bool ch__dnn_takes(int n, const int64_t *size)
{
    const int64_t most_size = 1 << 24, most = (int64_t)1 << 31;
    int64_t       all = 1;

    for (int i = 0; i < n; i++) {
        if (size[i] < 1 || size[i] > most_size || size[i] > most / all)
            return false;
        all *= size[i];
    }
    return true;
}

/* ---- descriptions ---- */

static ch_status new_attr(bool add, dnnl_primitive_attr_t *out)
{
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t   rc = dnnl_primitive_attr_create(out);

    if (rc != dnnl_success)
        return fail(rc, "a primitive's attributes");
    rc = dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user);
    if (rc == dnnl_success && add)
        rc = dnnl_post_ops_create(&ops);
    if (rc == dnnl_success && add)
        rc = dnnl_post_ops_append_sum(ops, 1.0f);
    if (rc == dnnl_success && add)
        rc = dnnl_primitive_attr_set_post_ops(*out, ops);
    if (ops != NULL)
        dnnl_post_ops_destroy(ops);
    if (rc == dnnl_success)
        return CH_OK;
    dnnl_primitive_attr_destroy(*out);
    return fail(rc, "a primitive's attributes");
}

/* Whether oneDNN may use the matrix tiles of newer CPUs. It believes the CPU's flag and dies where that
 * is not all: Linux gives a process the tiles only when asked, and some virtual machines
 * show the flag but not the shapes of tiles that most of oneDNN reads from CPUID. Its
 * gemm brings shapes of its own and is safe. */
static void ask_for_tiles(void)
{
#if defined(__linux__) && defined(__x86_64__)
    enum { GET_PERMISSION = 0x1022, ASK_PERMISSION = 0x1023, TILES = 18 };
    enum { FEATURES = 7, HAS_BF16_TILES = 1 << 22, SHAPES = 0x1d };
    unsigned      palettes = 0, flags = 0, a, b, c, d;
    unsigned long may = 0;

    if (!__get_cpuid_count(FEATURES, 0, &a, &b, &c, &flags) || (flags & HAS_BF16_TILES) == 0)
        return;
    (void)syscall(SYS_arch_prctl, ASK_PERMISSION, TILES);
    if (syscall(SYS_arch_prctl, GET_PERMISSION, &may) != 0 || (may >> TILES & 1) == 0)
        return;
    if (__get_cpuid_count(SHAPES, 0, &palettes, &b, &c, &d) && palettes > 0)
        tiles = TILES_SHOWN;
    else
        tiles = TILES_HIDDEN;
#endif
}

/* Whether to take an implementation: not the reference, nothing that would kill us, and not what does
 * bf16 without tiles if there is one that uses them. */
static bool is_good(const_dnnl_primitive_desc_t pd)
{
    const char *name = NULL;

    if (dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name) != dnnl_success ||
        name == NULL || strncmp(name, "ref", 3) == 0)
        return false;
    if (strstr(name, "amx") == NULL && strcmp(name, "brg:avx512_core_bf16") != 0)
        return true;
    pthread_once(&tiles_once, ask_for_tiles);
    return strstr(name, "amx") != NULL ? tiles == TILES_SHOWN : tiles != TILES_HIDDEN;
}

static dnnl_status_t first_good(const_dnnl_op_desc_t what, const_dnnl_primitive_attr_t attr,
                                const_dnnl_primitive_desc_t forward, dnnl_primitive_desc_t *out)
{
    dnnl_primitive_desc_iterator_t i = NULL;
    dnnl_status_t rc = dnnl_primitive_desc_iterator_create(&i, what, attr, engine, forward);

    while (rc == dnnl_success) {
        dnnl_primitive_desc_t pd = dnnl_primitive_desc_iterator_fetch(i);

        if (pd == NULL) {
            rc = dnnl_out_of_memory;
        } else if (is_good(pd)) {
            *out = pd;
            break;
        } else {
            dnnl_primitive_desc_destroy(pd);
            rc = dnnl_primitive_desc_iterator_next(i);
        }
    }
    if (i != NULL)
        dnnl_primitive_desc_iterator_destroy(i);
    return rc == dnnl_iterator_ends ? dnnl_unimplemented : rc;
}

ch_status ch__dnn_describe(const_dnnl_op_desc_t what, bool add,
                           const_dnnl_primitive_desc_t forward, dnnl_primitive_desc_t *out)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t         made;
    int                   before;
    ch_status             rc = new_attr(add, &attr);

    if (rc != CH_OK)
        return rc;
    before = guard_enter();
    made = first_good(what, attr, forward, out);
    guard_leave(before);
    dnnl_primitive_attr_destroy(attr);
    return made == dnnl_success ? CH_OK : fail(made, "a primitive's description");
}

/* ---- primitives ---- */

static void lane_drop(lane *l, int n)
{
    if (l->stream != NULL)
        dnnl_stream_destroy(l->stream);
    for (int i = 0; i < n; i++)
        if (l->memory[i] != NULL)
            dnnl_memory_destroy(l->memory[i]);
}

static ch_status lane_make(const ch_dnn *d, lane *l)
{
    dnnl_status_t rc = dnnl_stream_create(&l->stream, engine, dnnl_stream_default_flags);

    for (int i = 0; i < d->n_args && rc == dnnl_success; i++)
        rc = dnnl_memory_create(&l->memory[i], &d->md[i], engine, DNNL_MEMORY_NONE);
    if (rc == dnnl_success)
        return CH_OK;
    lane_drop(l, d->n_args);
    return fail(rc, "a primitive");
}

static ch_status lanes_make(ch_dnn *d)
{
    int n = ch__cpu_count() < MAX_LANES ? ch__cpu_count() : MAX_LANES;

    d->lane = ch__calloc((size_t)n, sizeof(*d->lane));
    if (d->lane == NULL)
        return ch__fail_memory("a primitive");
    for (; d->n_lanes < n; d->n_lanes++) {
        ch_status rc = lane_make(d, &d->lane[d->n_lanes]);

        if (rc != CH_OK)
            return rc;
    }
    return CH_OK;
}

static void set_args(ch_dnn *d, const_dnnl_primitive_desc_t pd, int n_args,
                     const ch_dnn_arg *arg)
{
    const dnnl_memory_desc_t *scratch =
        dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);

    for (int i = 0; i < n_args; i++) {
        d->arg[i] = arg[i].arg;
        d->md[i] = *arg[i].md;
    }
    d->n_args = n_args;
    d->scratch_bytes = scratch != NULL ? dnnl_memory_desc_get_size(scratch) : 0;
    if (d->scratch_bytes > 0) {
        d->arg[n_args] = DNNL_ARG_SCRATCHPAD;
        d->md[d->n_args++] = *scratch;
    }
}

ch_status ch__dnn_new(const_dnnl_primitive_desc_t pd, int n_args, const ch_dnn_arg *arg,
                      ch_dnn **out)
{
    ch_dnn       *d = ch__calloc(1, sizeof(*d));
    int           before;
    dnnl_status_t made;
    ch_status     rc;

    if (d == NULL)
        return ch__fail_memory("a primitive");
    set_args(d, pd, n_args, arg);
    before = guard_enter();
    made = dnnl_primitive_create(&d->primitive, pd);
    guard_leave(before);
    rc = made == dnnl_success ? lanes_make(d) : fail(made, "a primitive");
    if (rc != CH_OK) {
        ch__dnn_free(d);
        return rc;
    }
    *out = d;
    return CH_OK;
}

ch_status ch__dnn_reorder(const dnnl_memory_desc_t *from, const dnnl_memory_desc_t *to,
                          ch_dnn **out)
{
    dnnl_primitive_desc_t pd = NULL;
    int                   before = guard_enter();
    dnnl_status_t         made =
        dnnl_reorder_primitive_desc_create(&pd, from, engine, to, engine, NULL);
    ch_status rc;

    guard_leave(before);
    if (made != dnnl_success)
        return fail(made, "a change of layout");
    rc = ch__dnn_new(pd, 2, (ch_dnn_arg[]){{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}}, out);
    dnnl_primitive_desc_destroy(pd);
    return rc;
}

void ch__dnn_free(ch_dnn *d)
{
    if (d == NULL)
        return;
    for (int i = 0; i < d->n_lanes; i++)
        lane_drop(&d->lane[i], d->n_args);
    ch__free(d->lane);
    if (d->primitive != NULL)
        dnnl_primitive_destroy(d->primitive);
    ch__free(d);
}

size_t ch__dnn_scratch_bytes(const ch_dnn *d)
{
    return d->scratch_bytes;
}

/* oneDNN carries the address of an array that it only reads without saying so. */
static void *as_handle(const void *p)
{
    void *q;

    memcpy(&q, &p, sizeof(q));
    return q;
}

static ch_status run_in(const ch_dnn *d, lane *l, const void *const *data, void *scratch)
{
    dnnl_exec_arg_t arg[CH_DNN_MAX_ARGS + 1] = {{0}};
    dnnl_status_t   rc = dnnl_success;
    int             before = guard_enter();

    for (int i = 0; i < d->n_args && rc == dnnl_success; i++) {
        bool is_scratch = d->arg[i] == DNNL_ARG_SCRATCHPAD;

        rc = dnnl_memory_set_data_handle(l->memory[i],
                                         is_scratch ? scratch : as_handle(data[i]));
        arg[i] = (dnnl_exec_arg_t){d->arg[i], l->memory[i]};
    }
    if (rc == dnnl_success)
        rc = dnnl_primitive_execute(d->primitive, l->stream, d->n_args, arg);
    guard_leave(before);
    return rc == dnnl_success ? CH_OK : fail(rc, "running a primitive");
}

ch_status ch__dnn_run(const ch_dnn *d, const void *const *data, void *scratch)
{
    lane      own = {0};
    ch_status rc;

    for (int i = 0; i < d->n_lanes; i++) {
        lane *l = &d->lane[i];

        if (atomic_exchange_explicit(&l->is_taken, true, memory_order_acquire))
            continue;
        rc = run_in(d, l, data, scratch);
        atomic_store_explicit(&l->is_taken, false, memory_order_release);
        return rc;
    }
    rc = lane_make(d, &own); /* more threads than lanes: rare, and then it may cost a little */
    if (rc == CH_OK) {
        rc = run_in(d, &own, data, scratch);
        lane_drop(&own, d->n_args);
    }
    return rc;
}

#else
bool ch__onednn_is_on(void)
{
    return false;
}
#endif
