/* strategy/coordinator.c -- the public coordinator: steps, results, per-worker data.
 *
 * ch_coordinator is a handle on a parameter-server strategy; a strategy has at most one. All
 * work is done by the coordinator task of the strategy (job/coordinator.h). This file checks
 * arguments, records steps, encodes datasets, and passes the requests on.
 *
 * ch_remote is the result of a scheduled step. ch_per_worker is a dataset for each worker, an
 * iteration over such a dataset, or values for each worker.
 *
 * Invariants:
 *   1. ch_ps.coordinator is not a reference. It is read and written only between ch__task_enter
 *      and ch__task_leave, and find_coordinator never revives a coordinator without references.
 *   2. A step is recorded once for all workers, with sample values. So the elements or values
 *      of all workers must have the same dtypes, names and shapes. Only axis 0 may have an
 *      unknown size.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cohort/coordinator.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/fault.h"
#include "base/mem.h"
#include "data/data.h"
#include "strategy/parameter_server.h"
#include "tensor/print.h"
#include "tensor/ragged.h"

struct ch_coordinator {
    atomic_int   refs;
    ch_strategy *strategy; /* referenced */
    ch_ps       *ps;
};

struct ch_remote {
    atomic_int      refs;
    ch_coordinator *coordinator; /* referenced */
    ch_scheduled   *step;
    ch_graph       *graph; /* graph of the step; names its results */
};

/* A per-worker dataset, an iteration over it, or per-worker values. */
struct ch_per_worker {
    atomic_int      refs;
    ch_coordinator *coordinator; /* referenced */
    int             n_streams;   /* number of entries of dataset; 0: not a dataset */
    ch_tensor     **dataset;     /* encoded dataset of each worker, as u8 tensors */
    /* is_shared: the streams are parts of one dataset. rows_unknown: axis 0 of a component is
     * unknown. */
    bool             is_shared, rows_unknown;
    atomic_llong     n_passes; /* number of iterations that were created */
    ch_worker_input *input;    /* of an iteration or of values; NULL: a dataset */
    int              width;    /* number of components of an element */
    /* A value with the dtype and shape of each component. Steps are recorded with these. */
    ch_value **sample;
    char     **name;
};

/* ---- creating a coordinator ---- */

static const char *const mode_name[] = {"CH_ASYNCHRONOUS", "CH_BOUNDED_STALENESS",
                                        "CH_SYNCHRONOUS"};

/* Numeric options; none may be negative. */
enum { N_NUMBERS = 5 };
static const char *const number_name[N_NUMBERS] = {"staleness", "round", "capacity",
                                                   "capacity_bytes", "step_seconds"};

static double number_of(const ch_coordinator_options *o, int i)
{
    const double number[N_NUMBERS] = {o->staleness, o->round, (double)o->capacity,
                                      (double)o->capacity_bytes, o->step_seconds};

    return number[i];
}

static ch_status check_options(const ch_coordinator_options *o)
{
    if ((unsigned)o->mode > CH_SYNCHRONOUS)
        return ch__fail(CH_INVALID_ARGUMENT, "coordinator: its mode is %d; want %s, %s or %s",
                        (int)o->mode, mode_name[0], mode_name[1], mode_name[2]);
    for (int i = 0; i < N_NUMBERS; i++)
        if (!(number_of(o, i) >= 0) || !isfinite(number_of(o, i)))
            return ch__fail(CH_INVALID_ARGUMENT, "coordinator: %s is %g; want 0 or more",
                            number_name[i], number_of(o, i));
    return CH_OK;
}

/* Returns FAILED_PRECONDITION if the requested options differ from those of the existing
 * coordinator. */
static ch_status check_same(const ch_coordinator_options *current,
                            const ch_coordinator_options *requested)
{
    char    text[256];
    ch_text t = ch__text(text, sizeof(text));

    if (current->mode != requested->mode)
        ch__text_add(&t, ", mode is %s and not %s", mode_name[current->mode],
                     mode_name[requested->mode]);
    for (int i = 0; i < N_NUMBERS; i++)
        if (number_of(current, i) != number_of(requested, i))
            ch__text_add(&t, ", %s is %.15g and not %.15g", number_name[i],
                         number_of(current, i), number_of(requested, i));
    if (current->backups != requested->backups)
        ch__text_add(&t, ", backups is %s and not %s", current->backups ? "true" : "false",
                     requested->backups ? "true" : "false");
    if (ch__text_length(&t) == 0)
        return CH_OK;
    return ch__fail(
        CH_FAILED_PRECONDITION,
        "coordinator: the strategy already has a coordinator with other options: %s; pass "
        "these options to the first ch_coordinator_new, or NULL to get the existing one",
        text + strlen(", "));
}

static ch_status new_coordinator(ch_strategy *st, ch_ps *ps, ch_coordinator **out)
{
    ch_coordinator *c = ch__calloc(1, sizeof(*c));

    if (c == NULL)
        return ch__fail_memory("a coordinator");
    atomic_init(&c->refs, 1);
    c->strategy = ch_strategy_ref(st);
    c->ps = ps;
    *out = c;
    return CH_OK;
}

/* Returns a new reference to the strategy's coordinator, or NULL if it has none or its last
 * reference is being released. Must be called after ch__task_enter(ps->coord). */
static ch_coordinator *find_coordinator(const ch_ps *ps)
{
    ch_coordinator *c = ps->coordinator;
    int             refs = c != NULL ? atomic_load(&c->refs) : 0;

    while (refs > 0)
        if (atomic_compare_exchange_weak(&c->refs, &refs, refs + 1))
            return c;
    return NULL;
}

ch_status ch_coordinator_new(ch_strategy *st, const ch_coordinator_options *opt,
                             ch_coordinator **out)
{
    static const ch_coordinator_options default_options;
    ch_coordinator                     *c = NULL, *made = NULL;
    ch_ps                              *ps;
    ch_status rc = ch__check_not_null("coordinator", "out", out, NULL, NULL);

    st = ch__strategy_or_current(st);
    ps = ch__ps_of(st);
    if (rc == CH_OK && ps == NULL)
        rc = ch__fail(
            CH_INVALID_ARGUMENT,
            "coordinator: only a strategy with parameter servers has a coordinator (got %s); "
            "use ch_strategy_parameter_server",
            st->label);
    if (rc == CH_OK && opt != NULL)
        rc = check_options(opt);
    if (rc == CH_OK)
        rc = new_coordinator(st, ps, &made);
    if (rc != CH_OK)
        return rc;
    (void)ch__task_enter(ps->coord);
    c = find_coordinator(ps);
    if (opt != NULL && ps->has_options)
        rc = check_same(&ps->options, opt);
    if (rc == CH_OK && !ps->has_options) {
        ps->options = opt != NULL ? *opt : default_options;
        ps->has_options = true;
    }
    if (rc == CH_OK && c == NULL)
        c = ps->coordinator = made;
    ch__task_leave(ps->coord);
    if (rc == CH_OK)
        ch__coord_set_options(ps->coord, &ps->options);
    if (c != made || rc != CH_OK)
        ch_coordinator_unref(made);
    if (rc == CH_OK)
        *out = c;
    else if (c != made)
        ch_coordinator_unref(c);
    return rc;
}

ch_coordinator *ch_coordinator_ref(ch_coordinator *c)
{
    if (c != NULL)
        atomic_fetch_add(&c->refs, 1);
    return c;
}

void ch_coordinator_unref(ch_coordinator *c)
{
    if (c == NULL || atomic_fetch_sub(&c->refs, 1) != 1)
        return;
    (void)ch__task_enter(c->ps->coord);
    if (c->ps->coordinator == c)
        c->ps->coordinator = NULL;
    ch__task_leave(c->ps->coord);
    ch_strategy_unref(c->strategy);
    ch__free(c);
}

ch_strategy *ch_coordinator_strategy(const ch_coordinator *c)
{
    return c != NULL ? c->strategy : NULL;
}

/* ---- per-worker data ---- */

ch_per_worker *ch_per_worker_ref(ch_per_worker *p)
{
    if (p != NULL)
        atomic_fetch_add(&p->refs, 1);
    return p;
}

void ch_per_worker_unref(ch_per_worker *p)
{
    if (p == NULL || atomic_fetch_sub(&p->refs, 1) != 1)
        return;
    ch__coord_input_unref(p->coordinator->ps->coord, p->input);
    for (int i = 0; i < p->n_streams; i++)
        ch_tensor_unref(p->dataset[i]);
    for (int i = 0; i < p->width; i++) {
        ch_value_unref(p->sample[i]);
        ch__free(p->name[i]);
    }
    ch__free(p->dataset);
    ch__free(p->sample);
    ch__free(p->name);
    ch_coordinator_unref(p->coordinator);
    ch__free(p);
}

/* Creates a ch_per_worker with room for `width` components. */
static ch_status new_per_worker(ch_coordinator *c, int width, ch_per_worker **out)
{
    ch_per_worker *p = ch__calloc(1, sizeof(*p));

    if (p == NULL)
        return ch__fail_memory("what workers have");
    atomic_init(&p->refs, 1);
    p->coordinator = ch_coordinator_ref(c);
    p->sample = ch__calloc((size_t)width + 1, sizeof(ch_value *));
    p->name = ch__calloc((size_t)width + 1, sizeof(char *));
    if (p->sample == NULL || p->name == NULL) {
        ch_per_worker_unref(p);
        return ch__fail_memory("what workers have");
    }
    p->width = width;
    *out = p;
    return CH_OK;
}

static ch_status copy_name(ch_per_worker *p, int i, const char *name)
{
    if (name == NULL)
        return CH_OK;
    p->name[i] = ch__strdup(name);
    return p->name[i] != NULL ? CH_OK : ch__fail_memory("what workers have");
}

/* Makes the sample value of component i, with a tensor for each replica. An unknown number of
 * rows becomes 0. Row splits of a ragged component have an element more than rows, so their
 * size becomes 1. */
static ch_status make_sample(ch_per_worker *p, int i, const ch_tensor_spec *spec)
{
    int        n = p->coordinator->ps->n_devices;
    ch_tensor *t[64] = {NULL};
    ch_shape   shape = spec->shape;
    ch_status  rc = copy_name(p, i, spec->name);

    for (int k = 0; k < shape.rank; k++) {
        if (shape.dim[k] >= 0)
            continue;
        if (k > 0)
            return ch__fail(
                CH_INVALID_ARGUMENT,
                "component %d of the data: the size of axis %d is unknown; only axis 0 may "
                "have an unknown size",
                i, k);
        shape.dim[0] = shape.rank == 1 && ch__ragged_stem(spec->name, CH_RAGGED_SPLITS) >= 0;
        p->rows_unknown = true;
    }
    for (int k = 0; k < n && rc == CH_OK; k++)
        rc = ch_tensor_new(spec->dtype, shape, &t[k]);
    if (rc == CH_OK)
        rc = ch_value_new(n > 1 ? CH_PER_REPLICA : CH_PLAIN, n, t, &p->sample[i]);
    for (int k = 0; k < n; k++)
        ch_tensor_unref(t[k]);
    return rc;
}

/* ---- datasets ---- */

/* The common component specs of the elements of all workers. */
typedef struct element_specs {
    int             n;
    ch_tensor_spec *spec;  /* names belong to `first` */
    ch_dataset     *first; /* dataset of worker 0, referenced */
} element_specs;

static void drop_specs(element_specs *l)
{
    ch__free(l->spec);
    ch_dataset_unref(l->first);
}

/* Merges the shape of another worker. A known size matches an unknown size, and the result is
 * then unknown. Returns false if the shapes do not match. */
static bool merge_shapes(ch_shape *shape, const ch_shape *with)
{
    bool same = shape->rank == with->rank;

    for (int k = 0; k < shape->rank && same; k++) {
        same = shape->dim[k] == with->dim[k] || shape->dim[k] < 0 || with->dim[k] < 0;
        if (with->dim[k] < 0)
            shape->dim[k] = with->dim[k];
    }
    return same;
}

static bool is_same_name(const char *a, const char *b)
{
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

/* Reports that a worker's component or value differs from that of worker 0. All must be the
 * same because a step is recorded once. */
static ch_status fail_unlike(const char *what, int i, int worker, const ch_tensor_spec *current,
                             const ch_tensor_spec *first)
{
    char a[160], b[160];

    ch_tensor_spec_print(current, a, sizeof(a));
    ch_tensor_spec_print(first, b, sizeof(b));
    return ch__fail(
        CH_INVALID_ARGUMENT,
        "%s %d of worker %d is %s, and that of worker 0 is %s; they must be the same, "
        "because a step is recorded once for all workers",
        what, i, worker, a, b);
}

/* Merges the element specs of a worker's dataset. Worker 0 must be the first. */
static ch_status merge_specs(element_specs *l, int worker, ch_dataset *d)
{
    const ch_tensor_spec *spec = NULL;
    int                   n = ch_dataset_element_spec(d, &spec);

    if (worker == 0) {
        l->spec = ch__calloc((size_t)n + 1, sizeof(*l->spec));
        if (l->spec == NULL)
            return ch__fail_memory("datasets");
        memcpy(l->spec, spec, (size_t)n * sizeof(*l->spec));
        l->n = n;
        l->first = ch_dataset_ref(d);
    }
    if (n != l->n)
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "the elements of worker %d have %d components, and those of worker 0 "
            "%d; they must be the same, because a step is recorded once for all workers",
            worker, n, l->n);
    for (int i = 0; i < n; i++) {
        ch_tensor_spec first = l->spec[i];

        if (spec[i].dtype != first.dtype || !is_same_name(spec[i].name, first.name) ||
            !merge_shapes(&l->spec[i].shape, &spec[i].shape))
            return fail_unlike("component", i, worker, &spec[i], &first);
    }
    return CH_OK;
}

/* Encodes a dataset into a new u8 tensor. */
static ch_status encode(const ch_dataset *d, ch_tensor **out)
{
    void     *bytes = NULL;
    size_t    n = 0;
    ch_status rc = ch_dataset_encode(d, &bytes, &n);

    if (rc == CH_OK)
        rc = ch_tensor_wrap(CH_U8, ch_shape_of((int64_t)n), bytes, ch_bytes_free, bytes, out);
    if (rc != CH_OK)
        ch_bytes_free(bytes);
    return rc;
}

/* Replaces *t by an equal tensor of before[0..n), so that equal descriptions are stored
 * once. */
static void share_equal(ch_tensor *const *before, int n, ch_tensor **t)
{
    for (int i = 0; i < n; i++)
        if (ch_tensor_bytes(before[i]) == ch_tensor_bytes(*t) &&
            memcmp(ch_tensor_data(before[i]), ch_tensor_data(*t), ch_tensor_bytes(*t)) == 0) {
            ch_tensor_unref(*t);
            *t = ch_tensor_ref(before[i]);
            return;
        }
}

/* Returns the current number of workers. */
static int count_workers(ch_coordinator *c)
{
    ch_coordinator_stats s = {0};

    ch__coord_stats(c->ps->coord, &s);
    return s.workers;
}

/* Stores a new reference to the dataset of worker i of n in *out. The replicas of the worker
 * read its elements in turn. */
typedef ch_status (*dataset_of)(void *arg, int i, int n, ch_dataset **out);

/* Encodes the dataset of each of n workers, and merges their element specs into *l. */
static ch_status describe(dataset_of of, void *arg, int n, ch_tensor **bytes, element_specs *l)
{
    ch_dataset *last = NULL; /* the last dataset that was encoded, referenced */
    ch_status   rc = CH_OK;

    for (int i = 0; i < n && rc == CH_OK; i++) {
        ch_dataset *d = NULL;

        rc = of(arg, i, n, &d);
        if (rc == CH_OK && d == last) {
            bytes[i] = ch_tensor_ref(bytes[i - 1]);
            ch_dataset_unref(d);
            continue;
        }
        if (rc == CH_OK)
            rc = merge_specs(l, i, d);
        if (rc == CH_OK)
            rc = encode(d, &bytes[i]);
        if (rc == CH_OK)
            share_equal(bytes, i, &bytes[i]);
        ch_dataset_unref(last);
        last = d;
    }
    ch_dataset_unref(last);
    return rc;
}

/* Creates a per-worker dataset. is_shared: the workers' datasets are parts of one dataset. */
static ch_status make_dataset(const char *call, ch_coordinator *c, dataset_of of, void *arg,
                              bool is_shared, ch_per_worker **out)
{
    int            n = count_workers(c);
    ch_tensor    **bytes = ch__calloc((size_t)n + 1, sizeof(ch_tensor *));
    element_specs  l = {0};
    ch_per_worker *p = NULL;
    ch_status      rc =
        bytes == NULL ? ch__fail_memory("datasets") : describe(of, arg, n, bytes, &l);

    if (rc == CH_OK)
        rc = new_per_worker(c, l.n, &p);
    for (int i = 0; i < l.n && rc == CH_OK; i++)
        rc = make_sample(p, i, &l.spec[i]);
    drop_specs(&l);
    if (rc == CH_OK) {
        p->dataset = bytes;
        p->n_streams = n;
        p->is_shared = is_shared;
        *out = p;
        return CH_OK;
    }
    for (int i = 0; bytes != NULL && i < n; i++)
        ch_tensor_unref(bytes[i]);
    ch__free(bytes);
    ch_per_worker_unref(p);
    return ch__fail_at(rc, "%s", call);
}

/* Returns INVALID_ARGUMENT if the dataset is NULL. Functions that create datasets return NULL
 * on an error, so the message includes the last error of this thread. That error may have
 * another cause. */
static ch_status check_given(const char *call, const ch_dataset *d)
{
    char last[CH_FAULT_TEXT];

    if (d != NULL)
        return CH_OK;
    (void)snprintf(last, sizeof(last), "%s", ch_error_message());
    return ch__fail(CH_INVALID_ARGUMENT, "%s: the dataset is NULL%s%s", call,
                    last[0] != '\0' ? ", so it was not created; the last error of this thread: "
                                    : "",
                    last);
}

/* Gives every worker the same dataset (dataset_of). */
static ch_status whole_dataset(void *arg, int i, int n, ch_dataset **out)
{
    (void)i;
    (void)n;
    *out = ch_dataset_ref(arg);
    return CH_OK;
}

/* Splits the batches of a dataset for the replicas of a worker. *out is a new reference. */
static ch_status split_batches(const ch_coordinator *c, ch_dataset *d, ch_dataset **out)
{
    if (c->ps->n_devices > 1)
        return ch_dataset_distribute(d, &(ch_input_context){.n_replicas = c->ps->n_devices},
                                     out);
    *out = ch_dataset_ref(d);
    return CH_OK;
}

typedef struct part_args {
    const ch_coordinator *c;
    ch_dataset           *d;
} part_args;

/* Makes part i of n of a dataset that all workers share (dataset_of). */
static ch_status part(void *arg, int i, int n, ch_dataset **out)
{
    const part_args *of = arg;
    ch_dataset      *mine = NULL;
    ch_status        rc = ch__dataset_part(of->d, n, i, &mine);

    if (rc == CH_OK)
        rc = split_batches(of->c, mine, out);
    ch_dataset_unref(mine);
    return rc;
}

typedef struct function_args {
    ch_input_fn fn;
    void       *arg;
    int         n_devices;
} function_args;

/* Calls the program's function for worker i (dataset_of). */
static ch_status from_function(void *arg, int i, int n, ch_dataset **out)
{
    const function_args *f = arg;

    return ch_dataset_from_function(
        f->fn, f->arg,
        &(ch_input_context){.n_replicas = f->n_devices, .worker = i, .n_workers = n}, out);
}

ch_status ch_coordinator_create_per_worker_dataset(ch_coordinator *c, ch_dataset *d,
                                                   ch_per_worker **out)
{
    const char *call = "create_per_worker_dataset";
    ch_dataset *mine = NULL;
    ch_status   rc = ch__check_not_null(call, "the coordinator", c, "out", out);

    if (rc == CH_OK)
        rc = check_given(call, d);
    if (rc == CH_OK) {
        rc = split_batches(c, d, &mine);
        rc = rc == CH_OK ? make_dataset(call, c, whole_dataset, mine, false, out)
                         : ch__fail_at(rc, "%s", call);
    }
    ch_dataset_unref(mine);
    return rc;
}

ch_status ch_coordinator_create_per_worker_dataset_from_function(ch_coordinator *c,
                                                                 ch_input_fn fn, void *arg,
                                                                 ch_per_worker **out)
{
    const char   *call = "create_per_worker_dataset";
    function_args f = {fn, arg, 0};
    ch_status     rc = ch__check_not_null(call, "the coordinator", c, "out", out);

    if (rc == CH_OK && fn == NULL)
        rc = ch__fail(CH_INVALID_ARGUMENT, "%s: the function is NULL", call);
    if (rc != CH_OK)
        return rc;
    f.n_devices = c->ps->n_devices;
    return make_dataset(call, c, from_function, &f, false, out);
}

ch_status ch_coordinator_distribute_dataset(ch_coordinator *c, ch_dataset *d,
                                            ch_per_worker **out)
{
    const char *call = "distribute_dataset";
    ch_status   rc = ch__check_not_null(call, "the coordinator", c, "out", out);

    if (rc == CH_OK)
        rc = check_given(call, d);
    return rc == CH_OK ? make_dataset(call, c, part, &(part_args){c, d}, true, out) : rc;
}

/* Copies the sample values and names of a dataset to an iteration over it. */
static ch_status copy_samples(const ch_per_worker *from, ch_per_worker *to)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < from->width && rc == CH_OK; i++) {
        to->sample[i] = ch_value_ref(from->sample[i]);
        rc = copy_name(to, i, from->name[i]);
    }
    to->rows_unknown = from->rows_unknown;
    return rc;
}

ch_status ch_per_worker_iterate(ch_per_worker *dataset, ch_per_worker **out)
{
    ch_per_worker *p = NULL;
    ch_status      rc = ch__check_not_null("iterate", "the dataset", dataset, "out", out);

    if (rc == CH_OK && dataset->n_streams == 0)
        rc = ch__fail(
            CH_INVALID_ARGUMENT,
            "iterate: not a per-worker dataset; pass the result of "
            "ch_coordinator_create_per_worker_dataset or ch_coordinator_distribute_dataset");
    if (rc == CH_OK)
        rc = new_per_worker(dataset->coordinator, dataset->width, &p);
    if (rc == CH_OK)
        rc = copy_samples(dataset, p);
    if (rc == CH_OK)
        rc = ch__coord_input_datasets(dataset->coordinator->ps->coord, dataset->n_streams,
                                      dataset->dataset, dataset->width,
                                      atomic_fetch_add(&dataset->n_passes, 1),
                                      dataset->is_shared, &p->input);
    if (rc != CH_OK) {
        ch_per_worker_unref(p);
        return rc;
    }
    *out = p;
    return CH_OK;
}

/* ---- values ---- */

/* Returns INVALID_ARGUMENT unless each value is plain, or has a component for each replica of a
 * worker. */
static ch_status check_components(const ch_coordinator *c, const ch_tuple *t)
{
    for (int i = 0; i < ch_tuple_count(t); i++) {
        const ch_value *v = ch_tuple_at(t, i);

        if (ch_value_kind_of(v) != CH_PLAIN && ch_value_count(v) != c->ps->n_devices)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "value %d has %d components, and a worker has %d replicas; want a "
                            "plain value, or a component for each replica",
                            i, ch_value_count(v), c->ps->n_devices);
    }
    return CH_OK;
}

static ch_tensor_spec spec_of(const ch_tuple *t, int i, int replica)
{
    const ch_tensor *current = ch_value_at(ch_tuple_at(t, i), replica);

    return (ch_tensor_spec){ch_tuple_name(t, i), ch_tensor_dtype(current),
                            ch_tensor_shape(current)};
}

/* Returns INVALID_ARGUMENT unless the values of a worker have the names, dtypes and shapes of
 * those of worker 0. */
static ch_status check_alike(int worker, const ch_tuple *current, const ch_tuple *first,
                             int n_replicas)
{
    if (ch_tuple_count(current) != ch_tuple_count(first))
        return ch__fail(CH_INVALID_ARGUMENT, "the worker has %d values, and worker 0 has %d",
                        ch_tuple_count(current), ch_tuple_count(first));
    for (int i = 0; i < ch_tuple_count(current); i++)
        for (int k = 0; k < n_replicas; k++) {
            const ch_tensor_spec a = spec_of(current, i, k), b = spec_of(first, i, k);

            if (a.dtype != b.dtype || !ch_shape_equal(a.shape, b.shape) ||
                !is_same_name(a.name, b.name))
                return fail_unlike("value", i, worker, &a, &b);
        }
    return CH_OK;
}

/* Calls the program's function for each of n workers, and checks the results. */
static ch_status collect_values(const ch_coordinator *c, ch_value_fn fn, void *arg, int n,
                                ch_tuple **all)
{
    for (int i = 0; i < n; i++) {
        uint64_t  mark = ch__fail_mark();
        ch_status rc = ch__fail_since(mark, fn(&(ch_value_context){i, n}, arg, &all[i]));

        if (rc == CH_OK && all[i] == NULL)
            rc = ch__fail(CH_INVALID_ARGUMENT, "the function returned CH_OK and no tuple");
        if (rc == CH_OK)
            rc = check_components(c, all[i]);
        if (rc == CH_OK)
            rc = check_alike(i, all[i], all[0], c->ps->n_devices);
        if (rc != CH_OK)
            return ch__fail_at(rc, "values of worker %d", i);
    }
    return CH_OK;
}

/* Returns true if any value has a component for each replica. */
static bool has_components(int n, ch_tuple *const *all)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < ch_tuple_count(all[i]); k++)
            if (ch_value_count(ch_tuple_at(all[i], k)) > 1)
                return true;
    return false;
}

/* Creates per-worker values. If any value has components, every value is stored once for each
 * replica. */
static ch_status make_values(ch_coordinator *c, int n, ch_tuple *const *all,
                             ch_per_worker **out)
{
    int            width = ch_tuple_count(all[0]);
    int            copies = has_components(n, all) ? c->ps->n_devices : 1;
    ch_per_worker *p = NULL;
    ch_tensor    **t = ch__calloc((size_t)(n * copies * width) + 1, sizeof(ch_tensor *));
    ch_status      rc = t == NULL ? ch__fail_memory("values") : new_per_worker(c, width, &p);

    for (int i = 0; i < n * copies && rc == CH_OK; i++)
        for (int k = 0; k < width; k++)
            t[i * width + k] = ch_value_at(ch_tuple_at(all[i / copies], k), i % copies);
    for (int i = 0; i < width && rc == CH_OK; i++) {
        rc = copy_name(p, i, ch_tuple_name(all[0], i));
        if (rc == CH_OK)
            p->sample[i] = ch_value_ref(ch_tuple_at(all[0], i));
    }
    if (rc == CH_OK)
        rc = ch__coord_input_values(c->ps->coord, n, copies, width, t, &p->input);
    ch__free(t);
    if (rc == CH_OK)
        *out = p;
    else
        ch_per_worker_unref(p);
    return rc;
}

ch_status ch_coordinator_create_per_worker_values(ch_coordinator *c, ch_value_fn fn, void *arg,
                                                  ch_per_worker **out)
{
    ch_status  rc = ch__check_not_null("per-worker values", "the coordinator", c, "out", out);
    int        n = rc == CH_OK ? count_workers(c) : 0;
    ch_tuple **all = ch__calloc((size_t)n + 1, sizeof(ch_tuple *));

    if (rc == CH_OK && fn == NULL)
        rc = ch__fail(CH_INVALID_ARGUMENT, "per-worker values: the function is NULL");
    if (rc == CH_OK && all == NULL)
        rc = ch__fail_memory("per-worker values");
    if (rc == CH_OK)
        rc = collect_values(c, fn, arg, n, all);
    if (rc == CH_OK)
        rc = make_values(c, n, all, out);
    for (int i = 0; all != NULL && i < n; i++)
        ch_tuple_unref(all[i]);
    ch__free(all);
    return rc;
}

/* ---- steps ---- */

/* Checks a list argument: its length must not be negative, and it must not be NULL unless it is
 * empty. */
static ch_status check_list(const char *call, const char *count, int n, const char *list,
                            const void *list_address)
{
    if (n < 0)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: %s is %d, want 0 or more", call, count, n);
    if (n > 0 && list_address == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: %s is NULL, and %s is %d", call, list, count,
                        n);
    return CH_OK;
}

/* Checks the per-worker arguments of a step. */
static ch_status check_each(const ch_coordinator *c, const ch_arguments *a)
{
    ch_status rc = check_list("schedule", "n_each", a->n_each, "each", a->each);

    if (rc != CH_OK)
        return rc;
    for (int i = 0; i < a->n_each; i++) {
        const ch_per_worker *p = a->each[i];

        if (p == NULL || p->input == NULL)
            return ch__fail(CH_INVALID_ARGUMENT, "schedule: each[%d] is %s", i,
                            p == NULL ? "NULL"
                                      : "a dataset; pass the result of ch_per_worker_iterate");
        if (p->coordinator->ps != c->ps)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "schedule: each[%d] belongs to another coordinator", i);
    }
    return CH_OK;
}

static int count_inputs(const ch_arguments *a)
{
    int n = a->in != NULL ? ch_tuple_count(a->in) : 0;

    for (int i = 0; i < a->n_each; i++)
        n += a->each[i]->width;
    return n;
}

/* Makes a tuple of all inputs of a step: the leaves of a->in, then sample values for the
 * per-worker inputs. */
static ch_status sample_inputs(const ch_arguments *a, ch_tuple **out, bool *rows_unknown)
{
    size_t       n = (size_t)count_inputs(a);
    ch_value   **v = ch__calloc(n + 1, sizeof(ch_value *));
    const char **name = ch__calloc(n + 1, sizeof(char *));
    ch_status    rc = v == NULL || name == NULL ? ch__fail_memory("a step") : CH_OK;
    int          k = 0;

    for (; rc == CH_OK && a->in != NULL && k < ch_tuple_count(a->in); k++) {
        v[k] = ch_value_ref(ch_tuple_at(a->in, k));
        name[k] = ch_tuple_name(a->in, k);
    }
    for (int i = 0; i < a->n_each && rc == CH_OK; i++)
        for (int j = 0; j < a->each[i]->width; j++, k++) {
            v[k] = ch_value_ref(a->each[i]->sample[j]);
            name[k] = a->each[i]->name[j];
            *rows_unknown |= a->each[i]->rows_unknown;
        }
    if (rc == CH_OK)
        rc = ch_tuple_new(k, v, name, out);
    while (k > 0)
        ch_value_unref(v[--k]);
    ch__free(v);
    ch__free(name);
    return rc;
}

/* Records the step, or finds its graph. Stores a reference to the graph, and the number of the
 * run. */
static ch_status record(ch_coordinator *c, ch_function *f, const ch_arguments *a, ch_graph **g,
                        int64_t *number)
{
    ch_tuple *in = NULL;
    bool      rows_unknown = false;
    ch_status rc = a->n_each > 0 ? sample_inputs(a, &in, &rows_unknown) : CH_OK;

    if (rc == CH_OK)
        rc = ch__strategy_record(c->strategy, f, a->n_each > 0 ? in : a->in, rows_unknown, g,
                                 number);
    ch_tuple_unref(in);
    return rc;
}

static ch_status new_remote(ch_coordinator *c, ch_graph *g, ch_remote **out)
{
    ch_remote *r = ch__calloc(1, sizeof(*r));

    if (r == NULL)
        return ch__fail_memory("a step's results");
    atomic_init(&r->refs, 1);
    r->coordinator = ch_coordinator_ref(c);
    r->graph = ch_graph_ref(g);
    *out = r;
    return CH_OK;
}

/* Sends the step to the queue of the coordinator task. *out may be NULL if the results are not
 * wanted. */
static ch_status schedule_step(ch_coordinator *c, const ch_arguments *a, const ch_graph *g,
                               uint64_t function, int64_t number, ch_scheduled **out)
{
    enum { FEW = 16 };
    ch_worker_input *inline_input[FEW], **input = inline_input;
    ch_ps_inputs     in;
    ch_status        rc = ch__ps_inputs_read(c->ps, g, a->in, &in);

    if (rc != CH_OK)
        return rc;
    if (a->n_each > FEW &&
        (input = ch__calloc((size_t)a->n_each, sizeof(ch_worker_input *))) == NULL)
        rc = ch__fail_memory("a step");
    if (rc == CH_OK) {
        for (int i = 0; i < a->n_each; i++)
            input[i] = a->each[i]->input;
        rc = ch__coord_schedule(c->ps->coord,
                                &(ch_step_request){.function = function,
                                                   .number = number,
                                                   .n_in = in.n_in,
                                                   .n_inputs = in.n_inputs,
                                                   .n_shared = in.n_shared,
                                                   .in = in.in,
                                                   .n_worker_inputs = a->n_each,
                                                   .input = input},
                                out);
    }
    if (input != inline_input)
        ch__free(input);
    ch__ps_inputs_drop(&in);
    return rc;
}

ch_status ch_coordinator_schedule(ch_coordinator *c, ch_function *f, const ch_arguments *args,
                                  ch_remote **out)
{
    static const ch_arguments none;
    const ch_arguments       *a = args != NULL ? args : &none;
    ch_remote                *r = NULL;
    ch_graph                 *g = NULL;
    uint64_t                  function = 0;
    int64_t                   number = 0;
    ch_status rc = ch__check_not_null("schedule", "the coordinator", c, "the function", f);

    if (rc == CH_OK)
        rc = check_each(c, a);
    if (rc == CH_OK)
        rc = record(c, f, a, &g, &number);
    if (rc == CH_OK)
        rc = ch__ps_function(c->ps, g, &function);
    if (rc == CH_OK && out != NULL)
        rc = new_remote(c, g, &r);
    if (rc == CH_OK)
        rc = schedule_step(c, a, g, function, number, out != NULL ? &r->step : NULL);
    ch_graph_unref(g);
    if (rc == CH_OK && out != NULL)
        *out = r;
    else
        ch_remote_unref(r);
    return rc;
}

ch_status ch_coordinator_join(ch_coordinator *c)
{
    ch_status rc = ch__check_not_null("join", "the coordinator", c, NULL, NULL);

    return rc == CH_OK ? ch__coord_join(c->ps->coord, 0) : rc;
}

/* Converts seconds to a limit for ch__coord_join: milliseconds, rounded up; CH_NO_WAIT for
 * 0. */
static ch_status seconds_to_limit(const char *call, double seconds, int64_t *limit_ms)
{
    static const double max_seconds = 1e8; /* three years */

    if (!(seconds >= 0))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: seconds: not a duration (got %g, want 0 or more)", call, seconds);
    *limit_ms = seconds > 0
                    ? (int64_t)ceil(1e3 * (seconds < max_seconds ? seconds : max_seconds))
                    : CH_NO_WAIT;
    return CH_OK;
}

ch_status ch_coordinator_join_for(ch_coordinator *c, double seconds)
{
    int64_t   limit_ms = 0;
    ch_status rc = ch__check_not_null("join", "the coordinator", c, NULL, NULL);

    if (rc == CH_OK)
        rc = seconds_to_limit("join", seconds, &limit_ms);
    return rc == CH_OK ? ch__coord_join(c->ps->coord, limit_ms) : rc;
}

ch_status ch_coordinator_cancel(ch_coordinator *c)
{
    ch_status rc = ch__check_not_null("cancel", "the coordinator", c, NULL, NULL);

    if (rc == CH_OK)
        ch__coord_cancel(c->ps->coord, NULL);
    return rc;
}

ch_status ch_coordinator_done(ch_coordinator *c, bool *out)
{
    ch_status rc = ch__check_not_null("done", "the coordinator", c, "out", out);

    return rc == CH_OK ? ch__coord_done(c->ps->coord, out) : rc;
}

ch_status ch_coordinator_get_stats(ch_coordinator *c, ch_coordinator_stats *out)
{
    ch_status rc = ch__check_not_null("stats", "the coordinator", c, "out", out);

    if (rc == CH_OK) {
        *out = (ch_coordinator_stats){0};
        ch__coord_stats(c->ps->coord, out);
    }
    return rc;
}

ch_status ch_coordinator_get_worker_stats(ch_coordinator *c, int worker, ch_worker_stats *out)
{
    ch_status rc = ch__check_not_null("worker stats", "the coordinator", c, "out", out);

    return rc == CH_OK ? ch__coord_worker_stats(c->ps->coord, worker, out) : rc;
}

/* ---- results ---- */

ch_remote *ch_remote_ref(ch_remote *r)
{
    if (r != NULL)
        atomic_fetch_add(&r->refs, 1);
    return r;
}

void ch_remote_unref(ch_remote *r)
{
    if (r == NULL || atomic_fetch_sub(&r->refs, 1) != 1)
        return;
    ch__scheduled_unref(r->step);
    ch_graph_unref(r->graph);
    ch_coordinator_unref(r->coordinator);
    ch__free(r);
}

/* Waits for a step, and makes a tuple of its results. If the wait times out, the message begins
 * with "fetch". */
static ch_status fetch(ch_remote *r, int64_t limit_ms, ch_tuple **out)
{
    const ch_message *p = NULL;
    ch_status         rc =
        ch__coord_wait(r->coordinator->ps->coord, r->step, r->graph->name, limit_ms, &p);

    if (rc == CH_DEADLINE_EXCEEDED && !ch_remote_has_ended(r))
        return ch__fail_at(rc, "fetch");
    return rc == CH_OK ? ch__ps_results(r->coordinator->ps, r->graph,
                                        r->coordinator->ps->n_devices, p, out)
                       : rc;
}

ch_status ch_remote_fetch(ch_remote *r, ch_tuple **out)
{
    ch_status rc = ch__check_not_null("fetch", "the remote value", r, "out", out);

    return rc == CH_OK ? fetch(r, 0, out) : rc;
}

ch_status ch_remote_fetch_for(ch_remote *r, double seconds, ch_tuple **out)
{
    int64_t   limit_ms = 0;
    ch_status rc = ch__check_not_null("fetch", "the remote value", r, "out", out);

    if (rc == CH_OK)
        rc = seconds_to_limit("fetch", seconds, &limit_ms);
    return rc == CH_OK ? fetch(r, limit_ms, out) : rc;
}

ch_status ch_remote_cancel(ch_remote *r)
{
    ch_status rc = ch__check_not_null("cancel", "the remote value", r, NULL, NULL);

    if (rc == CH_OK)
        ch__coord_cancel(r->coordinator->ps->coord, r->step);
    return rc;
}

long long ch_remote_step(const ch_remote *r)
{
    return r != NULL ? (long long)ch__scheduled_number(r->step) : 0;
}

bool ch_remote_has_ended(const ch_remote *r)
{
    return r == NULL || ch__coord_has_ended(r->coordinator->ps->coord, r->step);
}

ch_status ch_coordinator_fetch(ch_coordinator *c, int n, ch_remote *const *r, ch_tuple **out)
{
    ch_status rc = ch__check_not_null("fetch", "the coordinator", c, NULL, NULL);
    int       k = 0;

    if (rc == CH_OK)
        rc = check_list("fetch", "n", n, "the list of remote values", r);
    if (rc == CH_OK)
        rc = check_list("fetch", "n", n, "out", out);
    for (int i = 0; i < n && rc == CH_OK; i++)
        if (r[i] == NULL)
            rc = ch__fail(CH_INVALID_ARGUMENT, "fetch: remote value %d of %d is NULL", i, n);
    for (; k < n && rc == CH_OK; k += rc == CH_OK)
        rc = ch_remote_fetch(r[k], &out[k]);
    while (rc != CH_OK && k > 0) {
        ch_tuple_unref(out[--k]);
        out[k] = NULL;
    }
    return rc;
}
