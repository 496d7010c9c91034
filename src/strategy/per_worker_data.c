/* strategy/per_worker_data.c -- data of the public coordinator for each worker: datasets,
 * iterations and values.
 *
 * A ch_per_worker (strategy/coordinator.h) is a dataset for each worker, an iteration over such
 * a dataset, or values for each worker. This file calls the program's functions for all
 * workers, checks that their data agree, encodes datasets, and passes them to the coordinator
 * task as worker inputs (job/coordinator.h). ch_coordinator_schedule takes iterations and
 * values as arguments of a step.
 *
 * Invariants:
 *   1. A step is recorded once for all workers, with the sample values of a ch_per_worker. So
 *      the elements or values of all workers must have the same dtypes, names and shapes. Only
 *      axis 0 may have an unknown size.
 *   2. A ch_per_worker does not change after its creation, except that n_passes counts its
 *      iterations, and that a restore changes the next or the newest of them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/protobuf.h"
#include "data/data.h"
#include "strategy/coordinator.h"
#include "strategy/cut.h"
#include "tensor/ragged.h"

enum { STATE_FORMAT = 1 }; /* of PerWorkerState (proto/job.proto) */

/* ---- creating and freeing ---- */

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
    if (p->parent != NULL) {
        (void)ch__task_enter(p->coordinator->ps->coord);
        if (p->parent->newest == p)
            p->parent->newest = NULL;
        ch__task_leave(p->coordinator->ps->coord);
        ch_per_worker_unref(p->parent);
    }
    ch__coord_input_unref(p->coordinator->ps->coord, p->input);
    ch__coord_input_unref(p->coordinator->ps->coord, p->restored);
    ch_dataset_unref(p->divided);
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
        return ch__fail_memory("per-worker data");
    atomic_init(&p->refs, 1);
    p->coordinator = ch_coordinator_ref(c);
    p->sample = ch__calloc((size_t)width + 1, sizeof(ch_value *));
    p->name = ch__calloc((size_t)width + 1, sizeof(char *));
    if (p->sample == NULL || p->name == NULL) {
        ch_per_worker_unref(p);
        return ch__fail_memory("per-worker data");
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
    return p->name[i] != NULL ? CH_OK : ch__fail_memory("per-worker data");
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
                "have an unknown size; pad it to a fixed size (ch_pad_options.shape of "
                "ch_dataset_padded_batch), or make ragged batches (ch_batch_options.ragged of "
                "ch_dataset_batch)",
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
    ch__free(l.spec);
    ch_dataset_unref(l.first);
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
static ch_status part_of(void *arg, int i, int n, ch_dataset **out)
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
    rc = make_dataset(call, c, from_function, &f, false, out);
    if (rc == CH_OK)
        (*out)->is_from_function = true;
    return rc;
}

ch_status ch_coordinator_distribute_dataset(ch_coordinator *c, ch_dataset *d,
                                            ch_per_worker **out)
{
    const char *call = "distribute_dataset";
    ch_status   rc = ch__check_not_null(call, "the coordinator", c, "out", out);

    if (rc == CH_OK)
        rc = check_given(call, d);
    if (rc == CH_OK)
        rc = make_dataset(call, c, part_of, &(part_args){c, d}, true, out);
    if (rc == CH_OK)
        (*out)->divided = ch_dataset_ref(d);
    return rc;
}

/* Returns the worker input of a restored pass, which the caller then owns; NULL: none. */
static ch_worker_input *take_restored(ch_per_worker *dataset)
{
    ch_worker_input *f;

    (void)ch__task_enter(dataset->coordinator->ps->coord);
    f = dataset->restored;
    dataset->restored = NULL;
    ch__task_leave(dataset->coordinator->ps->coord);
    return f;
}

static void set_newest(ch_per_worker *dataset, ch_per_worker *iteration)
{
    (void)ch__task_enter(dataset->coordinator->ps->coord);
    dataset->newest = iteration;
    ch__task_leave(dataset->coordinator->ps->coord);
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
    for (int i = 0; rc == CH_OK && i < dataset->width; i++) {
        p->sample[i] = ch_value_ref(dataset->sample[i]);
        rc = copy_name(p, i, dataset->name[i]);
    }
    if (rc == CH_OK) {
        p->rows_unknown = dataset->rows_unknown;
        p->parent = ch_per_worker_ref(dataset);
        p->input = take_restored(dataset);
    }
    if (rc == CH_OK && p->input == NULL)
        rc = ch__coord_input_datasets(dataset->coordinator->ps->coord, dataset->n_streams,
                                      dataset->dataset, dataset->width,
                                      atomic_fetch_add(&dataset->n_passes, 1),
                                      dataset->is_shared, &p->input);
    if (rc != CH_OK) {
        ch_per_worker_unref(p);
        return rc;
    }
    set_newest(dataset, p);
    *out = p;
    return CH_OK;
}

/* ---- saving and restoring (strategy/cut.h) ---- */

/* Returns the dataset of an iteration or a dataset; NULL if `p` is neither. */
static ch_per_worker *dataset_of_pass(ch_per_worker *p)
{
    return p->parent != NULL ? p->parent : p->n_streams > 0 ? p : NULL;
}

static ch_status fail_not_dataset(const char *call)
{
    return ch__fail(
        CH_INVALID_ARGUMENT,
        "%s: these are per-worker values, which have no position; pass a per-worker "
        "dataset",
        call);
}

/* Packs the state of the newest pass of a dataset. *bytes stays NULL if it was freed. */
static ch_status save_pass(const ch_per_worker *dataset, void **bytes, size_t *n)
{
    ch_task         *coord = dataset->coordinator->ps->coord;
    ch_worker_input *input;
    ch_status        rc;

    (void)ch__task_enter(coord);
    input = dataset->newest != NULL ? dataset->newest->input : dataset->restored;
    if (input != NULL)
        ch__coord_input_ref(input);
    ch__task_leave(coord);
    if (input == NULL)
        return CH_OK;
    rc = ch__coord_input_save(coord, input, dataset->is_from_function, bytes, n);
    ch__coord_input_unref(coord, input);
    return rc;
}

ch_status ch__per_worker_save(ch_per_worker *p, void **bytes, size_t *n)
{
    const ch_per_worker   *dataset = dataset_of_pass(p);
    Cohort__PerWorkerState m;
    void                  *pass = NULL;
    size_t                 n_pass = 0;
    ch_status              rc;

    if (dataset == NULL)
        return fail_not_dataset("save");
    cohort__per_worker_state__init(&m);
    m.format = STATE_FORMAT;
    m.passes = atomic_load(&dataset->n_passes);
    rc = save_pass(dataset, &pass, &n_pass);
    m.pass.data = pass;
    m.pass.len = n_pass;
    if (rc == CH_OK)
        rc = ch__protobuf_pack(&m.base, bytes, n);
    ch__free(pass);
    return rc;
}

/* Makes the encoded dataset of each of the k parts of a pass, as it was divided when the pass
 * began. */
static ch_status part_datasets(const ch_per_worker *p, const Cohort__PassState *m,
                               ch_tensor **part)
{
    element_specs l = {0};
    int           k = (int)m->n_streams;
    ch_status     rc = CH_OK;

    if (k != p->n_streams && p->divided != NULL) {
        rc = describe(part_of, &(part_args){p->coordinator, p->divided}, k, part, &l);
        ch__free(l.spec);
        ch_dataset_unref(l.first);
        return rc;
    }
    for (int i = 0; i < k && rc == CH_OK; i++)
        if (k != p->n_streams && p->is_from_function)
            rc = ch_tensor_copy_of(CH_U8, ch_shape_of((int64_t)m->streams[i]->dataset.len),
                                   m->streams[i]->dataset.data, &part[i]);
        else
            part[i] = ch_tensor_ref(p->dataset[i < p->n_streams ? i : 0]);
    return rc;
}

/* Creates the worker input of a saved pass. If the number of workers has changed, all workers
 * read all parts of it, so that each element is read once. */
static ch_status resume_pass(const ch_per_worker *p, const Cohort__PassState *m,
                             ch_worker_input **out)
{
    enum { MOST_STREAMS = 1 << 16 }; /* more than any job has workers */
    ch_tensor **part;
    ch_status   rc;

    if (m->n_streams > MOST_STREAMS)
        return ch__fail(CH_DATA_LOSS,
                        "the saved state of a pass has %zu parts, want at most %d",
                        m->n_streams, MOST_STREAMS);
    part = ch__calloc(m->n_streams + 1, sizeof(ch_tensor *));
    rc = part == NULL ? ch__fail_memory("datasets") : part_datasets(p, m, part);
    if (rc == CH_OK)
        rc = ch__coord_input_resume(p->coordinator->ps->coord, m, part, p->width,
                                    p->is_shared || m->n_streams != (size_t)p->n_streams, out);
    for (size_t i = 0; part != NULL && i < m->n_streams; i++)
        ch_tensor_unref(part[i]);
    ch__free(part);
    return rc;
}

/* Parses an untrusted message of a restore. */
static ch_status parse_state(const ProtobufCMessageDescriptor *type, const void *bytes,
                             size_t n, ProtobufCMessage **out)
{
    enum { BASE = 1 << 16, PER_BYTE = 16 }; /* memory of any message, and for each byte */

    ch_status rc = ch__protobuf_unpack_within(type, bytes, n, BASE + PER_BYTE * n, out);

    return rc == CH_INVALID_ARGUMENT ? ch__fail_at(CH_DATA_LOSS, "a saved pass") : rc;
}

struct ch_saved_pass {
    ch_per_worker   *dataset; /* borrowed */
    int64_t          n_passes;
    ch_worker_input *input; /* owned; NULL: the next iteration begins a new pass */
};

static void unref_input(const ch_saved_pass *s, ch_worker_input *input)
{
    ch__coord_input_unref(s->dataset->coordinator->ps->coord, input);
}

ch_status ch__saved_pass_read(ch_per_worker *p, const void *bytes, size_t n,
                              ch_saved_pass **out)
{
    ProtobufCMessage *m = NULL, *pass = NULL;
    ch_saved_pass    *s = NULL;
    ch_per_worker    *dataset = dataset_of_pass(p);
    ch_status         rc;

    if (dataset == NULL)
        return fail_not_dataset("restore");
    rc = parse_state(&cohort__per_worker_state__descriptor, bytes, n, &m);
    const Cohort__PerWorkerState *state = (const void *)m;
    if (rc == CH_OK && (state->format != STATE_FORMAT || state->passes < 0))
        rc = ch__fail(CH_DATA_LOSS, "position of a per-worker dataset: format %u, pass %lld",
                      state->format, (long long)state->passes);
    if (rc == CH_OK && state->pass.len > 0)
        rc = parse_state(&cohort__pass_state__descriptor, state->pass.data, state->pass.len,
                         &pass);
    if (rc == CH_OK) {
        s = ch__calloc(1, sizeof(*s));
        rc = s != NULL ? CH_OK : ch__fail_memory("position of a per-worker dataset");
    }
    if (rc == CH_OK) {
        s->dataset = dataset;
        s->n_passes = state->passes;
        if (pass != NULL)
            rc = resume_pass(dataset, (const void *)pass, &s->input);
    }
    ch__protobuf_free(m);
    ch__protobuf_free(pass);
    if (rc == CH_OK)
        *out = s;
    else
        ch__free(s);
    return rc;
}

void ch__saved_pass_drop(ch_saved_pass *s)
{
    if (s != NULL)
        unref_input(s, s->input);
    ch__free(s);
}

void ch__saved_pass_continue(ch_saved_pass *s)
{
    ch_per_worker   *dataset = s->dataset;
    ch_task         *coord = dataset->coordinator->ps->coord;
    ch_worker_input *old, **at;

    atomic_store(&dataset->n_passes, s->n_passes);
    (void)ch__task_enter(coord);
    at = s->input != NULL && dataset->newest != NULL ? &dataset->newest->input
                                                     : &dataset->restored;
    old = *at;
    *at = s->input;
    ch__task_leave(coord);
    unref_input(s, old);
    ch__free(s);
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
