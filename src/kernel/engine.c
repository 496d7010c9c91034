/* kernel/engine.c -- oneDNN on a single thread.
 *
 * ch_dnn is a primitive with a fixed number of execution contexts. A context has the oneDNN
 * objects that carry the addresses of a run, so a thread must have a context for itself while
 * it runs the primitive. conv_onednn.c and gemm_onednn.c are the callers.
 *
 * Invariants:
 *   1. Every call of oneDNN that creates or runs a primitive is between guard_enter and
 *      guard_leave.
 *   2. A context is used only by the thread that has set its is_busy.
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

enum { MAX_CONTEXTS = 8 };

/* The objects of a thread while it runs a primitive: they carry the addresses of the arrays. */
typedef struct context {
    atomic_bool   is_busy;
    dnnl_stream_t stream;
    dnnl_memory_t memory[CH_DNN_MAX_ARGS + 1]; /* the last is the scratch memory */
} context;

struct ch_dnn {
    dnnl_primitive_t   primitive;
    int                n_args, n_contexts;
    int                arg[CH_DNN_MAX_ARGS + 1];
    dnnl_memory_desc_t md[CH_DNN_MAX_ARGS + 1];
    size_t             scratch_bytes;
    context           *context;
};

static dnnl_engine_t  engine; /* NULL: oneDNN could not create an engine */
static pthread_once_t engine_once = PTHREAD_ONCE_INIT;
/* AMX tiles: not usable; usable, but CPUID hides their shapes; usable. */
static enum { TILES_NONE, TILES_HIDDEN, TILES_SHOWN } tiles;
static pthread_once_t tiles_once = PTHREAD_ONCE_INIT;
static int (*omp_threads)(void); /* NULL: oneDNN was built without OpenMP */
static void (*omp_set_threads)(int);

/* Creates the engine and finds the OpenMP that oneDNN runs on. The symbols are looked up at run
 * time, because linking an OpenMP of our choice might give a different library than the loaded
 * one. */
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

/* Sets the OpenMP threads of the calling thread to 1. Returns the number before, which the
 * caller must pass to guard_leave. */
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

/* Converts a oneDNN status to an error about `object`. */
static ch_status fail(dnnl_status_t rc, const char *object)
{
    switch (rc) {
    case dnnl_out_of_memory:
        return ch__fail_memory(object);
    case dnnl_unimplemented:
        return ch__fail(CH_UNIMPLEMENTED, "%s: not supported for this dtype or CPU", object);
    default:
        return ch__fail(CH_INTERNAL, "%s: failed with oneDNN status %d", object, (int)rc);
    }
}

bool ch__dnn_supports(int n, const int64_t *size)
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
        return fail(rc, "oneDNN: primitive attributes");
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
    return fail(rc, "oneDNN: primitive attributes");
}

/* Sets `tiles`: whether oneDNN may use the matrix tiles (AMX) of newer CPUs.
 *
 * oneDNN trusts the CPU flag, which is not sufficient, and then crashes. Linux gives a process
 * the tiles only on request. Some virtual machines show the flag but hide the tile shapes,
 * which most of oneDNN reads from CPUID. The gemm of oneDNN has its own shapes and is safe. */
static void detect_tiles(void)
{
#if defined(__linux__) && defined(__x86_64__)
    enum { GET_PERMISSION = 0x1022, REQUEST_PERMISSION = 0x1023, TILES = 18 };
    enum { FEATURES = 7, HAS_BF16_TILES = 1 << 22, SHAPES = 0x1d };
    unsigned      palettes = 0, flags = 0, a, b, c, d;
    unsigned long may = 0;

    if (!__get_cpuid_count(FEATURES, 0, &a, &b, &c, &flags) || (flags & HAS_BF16_TILES) == 0)
        return;
    (void)syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILES);
    if (syscall(SYS_arch_prctl, GET_PERMISSION, &may) != 0 || (may >> TILES & 1) == 0)
        return;
    if (__get_cpuid_count(SHAPES, 0, &palettes, &b, &c, &d) && palettes > 0)
        tiles = TILES_SHOWN;
    else
        tiles = TILES_HIDDEN;
#endif
}

/* Returns true if an implementation may be used. Rejects the reference implementation. Accepts
 * an AMX implementation only if `tiles` is TILES_SHOWN, because it would crash otherwise. If
 * `tiles` is TILES_HIDDEN, rejects brg:avx512_core_bf16, which uses no tiles, in favour of the
 * gemm, which does. */
static bool is_good(const_dnnl_primitive_desc_t pd)
{
    const char *name = NULL;

    if (dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name) != dnnl_success ||
        name == NULL || strncmp(name, "ref", 3) == 0)
        return false;
    if (strstr(name, "amx") == NULL && strcmp(name, "brg:avx512_core_bf16") != 0)
        return true;
    pthread_once(&tiles_once, detect_tiles);
    return strstr(name, "amx") != NULL ? tiles == TILES_SHOWN : tiles != TILES_HIDDEN;
}

/* Finds the first implementation that is_good accepts. Returns dnnl_unimplemented if there is
 * none. */
static dnnl_status_t first_good(const_dnnl_op_desc_t desc, const_dnnl_primitive_attr_t attr,
                                const_dnnl_primitive_desc_t forward, dnnl_primitive_desc_t *out)
{
    dnnl_primitive_desc_iterator_t i = NULL;
    dnnl_status_t rc = dnnl_primitive_desc_iterator_create(&i, desc, attr, engine, forward);

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

ch_status ch__dnn_describe(const_dnnl_op_desc_t desc, bool add,
                           const_dnnl_primitive_desc_t forward, dnnl_primitive_desc_t *out)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t         status;
    int                   before;
    ch_status             rc = new_attr(add, &attr);

    if (rc != CH_OK)
        return rc;
    before = guard_enter();
    status = first_good(desc, attr, forward, out);
    guard_leave(before);
    dnnl_primitive_attr_destroy(attr);
    return status == dnnl_success ? CH_OK : fail(status, "oneDNN: primitive description");
}

/* ---- primitives ---- */

static void context_free(context *l, int n)
{
    if (l->stream != NULL)
        dnnl_stream_destroy(l->stream);
    for (int i = 0; i < n; i++)
        if (l->memory[i] != NULL)
            dnnl_memory_destroy(l->memory[i]);
}

static ch_status context_init(const ch_dnn *d, context *l)
{
    dnnl_status_t rc = dnnl_stream_create(&l->stream, engine, dnnl_stream_default_flags);

    for (int i = 0; i < d->n_args && rc == dnnl_success; i++)
        rc = dnnl_memory_create(&l->memory[i], &d->md[i], engine, DNNL_MEMORY_NONE);
    if (rc == dnnl_success)
        return CH_OK;
    context_free(l, d->n_args);
    return fail(rc, "oneDNN: primitive");
}

static ch_status contexts_new(ch_dnn *d)
{
    int n = ch__cpu_count() < MAX_CONTEXTS ? ch__cpu_count() : MAX_CONTEXTS;

    d->context = ch__calloc((size_t)n, sizeof(*d->context));
    if (d->context == NULL)
        return ch__fail_memory("oneDNN: primitive");
    for (; d->n_contexts < n; d->n_contexts++) {
        ch_status rc = context_init(d, &d->context[d->n_contexts]);

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
    dnnl_status_t status;
    ch_status     rc;

    if (d == NULL)
        return ch__fail_memory("oneDNN: primitive");
    set_args(d, pd, n_args, arg);
    before = guard_enter();
    status = dnnl_primitive_create(&d->primitive, pd);
    guard_leave(before);
    rc = status == dnnl_success ? contexts_new(d) : fail(status, "oneDNN: primitive");
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
    dnnl_status_t         status =
        dnnl_reorder_primitive_desc_create(&pd, from, engine, to, engine, NULL);
    ch_status rc;

    guard_leave(before);
    if (status != dnnl_success)
        return fail(status, "oneDNN: layout reorder");
    rc = ch__dnn_new(pd, 2, (ch_dnn_arg[]){{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}}, out);
    dnnl_primitive_desc_destroy(pd);
    return rc;
}

void ch__dnn_free(ch_dnn *d)
{
    if (d == NULL)
        return;
    for (int i = 0; i < d->n_contexts; i++)
        context_free(&d->context[i], d->n_args);
    ch__free(d->context);
    if (d->primitive != NULL)
        dnnl_primitive_destroy(d->primitive);
    ch__free(d);
}

size_t ch__dnn_scratch_bytes(const ch_dnn *d)
{
    return d->scratch_bytes;
}

/* oneDNN takes the address of an array that it only reads as a pointer to non-const. */
static void *as_handle(const void *p)
{
    void *q;

    memcpy(&q, &p, sizeof(q));
    return q;
}

static ch_status run_in(const ch_dnn *d, context *l, const void *const *data, void *scratch)
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
    return rc == dnnl_success ? CH_OK : fail(rc, "oneDNN: primitive execution");
}

ch_status ch__dnn_run(const ch_dnn *d, const void *const *data, void *scratch)
{
    context   own = {0};
    ch_status rc;

    for (int i = 0; i < d->n_contexts; i++) {
        context *l = &d->context[i];

        if (atomic_exchange_explicit(&l->is_busy, true, memory_order_acquire))
            continue;
        rc = run_in(d, l, data, scratch);
        atomic_store_explicit(&l->is_busy, false, memory_order_release);
        return rc;
    }
    /* More threads than contexts: rare, so the cost of a temporary context is acceptable. */
    rc = context_init(d, &own);
    if (rc == CH_OK) {
        rc = run_in(d, &own, data, scratch);
        context_free(&own, d->n_args);
    }
    return rc;
}

#else
bool ch__onednn_is_on(void)
{
    return false;
}
#endif
