/* test/api/hostile_objects.c -- objects and functions that serve as arguments of hostile calls,
 * and functions that use the results of these calls.
 *
 * Each object is made in the process of the call and ends with that process. Nothing is freed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "hostile.h"

char              usual_text[64];
char              hostile_zeros[1 << 14];
hostile_recording recording;

/* ---- values ---- */

static ch_tensor *tensor_of(ch_dtype dtype, ch_shape shape, const void *data)
{
    ch_tensor *t = NULL;

    return ch_tensor_copy_of(dtype, shape, data, &t) == CH_OK ? t : NULL;
}

static const float   floats[16] = {1, 2, 3, 4};
static const int64_t ids[] = {0, 1};

ch_tensor *usual_tensor(void)
{
    return tensor_of(CH_F32, ch_shape_of(2, 2), floats);
}

ch_tensor *usual_ids(void)
{
    return tensor_of(CH_I64, ch_shape_of(2), ids);
}

ch_tensor *usual_strings(void)
{
    static const ch_str words[] = {{"one", 3}, {"two", 3}};

    return tensor_of(CH_STR, ch_shape_of(2), words);
}

ch_tensor *usual_empty(void)
{
    return tensor_of(CH_F32, ch_shape_of(0, 2), floats);
}

ch_tensor *usual_number(void)
{
    return tensor_of(CH_F64, ch_shape_scalar(), &(double){1});
}

ch_value *usual_value(void)
{
    ch_tensor *t = usual_tensor();
    ch_value  *v = NULL;

    return ch_value_new(CH_PER_REPLICA, 2, (ch_tensor *[]){t, t}, &v) == CH_OK ? v : NULL;
}

/* Returns a tuple of named tensors. */
static ch_tuple *tuple_of(int n, ch_tensor *const *t, const char *const *name)
{
    ch_value *v[4] = {0};
    ch_tuple *out = NULL;
    ch_status rc = CH_OK;

    for (int i = 0; i < n && rc == CH_OK; i++)
        rc = ch_value_new(CH_PLAIN, 1, &t[i], &v[i]);
    if (rc == CH_OK)
        rc = ch_tuple_new(n, v, name, &out);
    return rc == CH_OK ? out : NULL;
}

ch_tuple *usual_tuple(void)
{
    return tuple_of(1, (ch_tensor *[]){usual_tensor()}, (const char *[]){"x"});
}

ch_tuple *usual_replica_tuple(void)
{
    ch_value *v = usual_value();
    ch_tuple *out = NULL;

    return ch_tuple_new(1, &v, (const char *[]){"x"}, &out) == CH_OK ? out : NULL;
}

/* ---- strategies, variables, functions ---- */

bool usual_strategy_is_servers, usual_strategy_was_used;

ch_strategy *usual_strategy(void)
{
    static ch_strategy      *st;
    static const char *const device[] = {"CPU:0", "CPU:1"};

    usual_strategy_was_used = true;
    if (usual_strategy_is_servers)
        return usual_servers();
    if (st == NULL &&
        ch_strategy_mirrored(&(ch_mirrored_options){.n_devices = 2, .device = device}, &st) !=
            CH_OK)
        return NULL;
    return st;
}

static ch_var *var_of(ch_var_spec spec)
{
    ch_var *v = NULL;

    spec.shape = ch_shape_of(2, 2);
    return ch_var_new(usual_strategy(), &spec, &v) == CH_OK ? v : NULL;
}

ch_var *usual_var(void)
{
    static ch_var *v;

    if (v == NULL)
        v = var_of((ch_var_spec){.name = "w", .aggregation = CH_AGGREGATE_MEAN});
    return v;
}

ch_var *usual_first_var(void)
{
    static ch_var *v;

    if (v == NULL)
        v = var_of((ch_var_spec){.name = "first", .aggregation = CH_AGGREGATE_FIRST});
    return v;
}

ch_var *usual_worker_var(void)
{
    static ch_var *v;

    if (v == NULL)
        v = var_of((ch_var_spec){.name = "own", .per_worker = true});
    return v;
}

void usual_step(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "y", ch_step_in(s, 0));
}

void usual_choose(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_equal(ch_sum_all(ch_step_in(s, 0)), ch_sum_all(ch_step_in(s, 0))));
}

ch_function *usual_function(void)
{
    static ch_function *f;

    if (f == NULL && ch_function_new("usual", usual_step, NULL, &f) != CH_OK)
        return NULL;
    return f;
}

ch_function *usual_run_function(void)
{
    ch_function *f = usual_function();

    return ch_strategy_run(usual_strategy(), f, usual_tuple(), NULL) == CH_OK ? f : NULL;
}

ch_graph *usual_graph(void)
{
    return ch_function_graph(usual_run_function());
}

ch_table *usual_table(void)
{
    static ch_table *t;

    if (t == NULL && ch_table_new(usual_ids(), NULL, -1, &t) != CH_OK)
        return NULL;
    return t;
}

/* ---- data ---- */

static ch_dataset *slices(void)
{
    ch_tensor *t = tensor_of(CH_F32, ch_shape_of(4, 2), floats);

    return ch_dataset_slices(2, (ch_tensor *[]){t, t}, (const char *[]){"x", "y"});
}

ch_dataset *usual_dataset(void)
{
    return ch_dataset_batch(slices(), 2, NULL);
}

ch_dataset *usual_rows(void)
{
    return ch_dataset_select(slices(), 1, (const char *[]){"x"});
}

ch_dataset *usual_files(const char *name)
{
    return ch_dataset_file_list(1, &name);
}

static ch_status write_bytes(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");

    if (f == NULL)
        return CH_NOT_FOUND;
    fwrite(bytes, 1, n, f);
    return fclose(f) == 0 ? CH_OK : CH_UNKNOWN;
}

static ch_status write_text(const char *path, const char *text)
{
    return write_bytes(path, text, strlen(text));
}

/* Writes the checkpoint "usual" with the tensor w, f32 (4), in two slices. */
static ch_status write_checkpoint(void)
{
    static const char index[] = "00000608011a02080100080f00770001010180820801120412020802280835"
                                "593ce535060211828208011204"
                                "120208022008280835620a976b0001167708011204120208043a040a021002"
                                "3a060a04080210020000000001"
                                "00000000c7d2661a000000000100000000c0f2a1b000010278005b00000000"
                                "0100000000c24dcf0960086d0e";
    static const unsigned char magic[] = {0x57, 0xfb, 0x80, 0x8b, 0x24, 0x75, 0x47, 0xdb};
    unsigned char              bytes[176] = {0};
    ch_status rc = write_text("checkpoint", "model_checkpoint_path: \"usual\"\n");

    for (size_t i = 0; i < sizeof(index) / 2; i++) {
        unsigned x;

        if (sscanf(index + 2 * i, "%2x", &x) != 1)
            return CH_DATA_LOSS;
        bytes[i] = (unsigned char)x;
    }
    memcpy(bytes + sizeof(bytes) - sizeof(magic), magic, sizeof(magic));
    if (rc == CH_OK)
        rc = write_bytes("usual.index", bytes, sizeof(bytes));
    return rc == CH_OK ? write_bytes("usual.data-00000-of-00001", floats, 16) : rc;
}

ch_checkpoint_reader *usual_reader(void)
{
    ch_checkpoint_reader *r = NULL;

    return ch_checkpoint_open("usual", &r) == CH_OK ? r : NULL;
}

const ch_state_ops usual_state_ops = {NULL, NULL};

ch_checkpoint *usual_checkpoint(void)
{
    ch_checkpoint *c = NULL;
    ch_tensor     *t = NULL;
    ch_var        *v = NULL;

    if (ch_checkpoint_new(&c) != CH_OK || ch_tensor_new(CH_F32, ch_shape_of(4), &t) != CH_OK ||
        ch_var_new(NULL, &(ch_var_spec){.name = "w", .initial = t}, &v) != CH_OK ||
        ch_checkpoint_add_var(c, "w", v) != CH_OK)
        return NULL;
    ch_tensor_unref(t);
    ch_var_unref(v);
    return c;
}

ch_checkpoint_manager *usual_manager(void)
{
    ch_checkpoint_manager *m = NULL;
    ch_checkpoint         *c = usual_checkpoint();
    char                   folder[40];
    ch_status              rc;
    static int             n;

    /* Several processes run at a time, and a call may need several managers. */
    snprintf(folder, sizeof(folder), "managed-%d-%d", (int)getpid(), n++);
    rc = ch_checkpoint_manager_new(c, folder, NULL, &m);
    ch_checkpoint_unref(c);
    return rc == CH_OK ? m : NULL;
}

ch_restored *usual_restored(void)
{
    ch_checkpoint *c = usual_checkpoint();
    ch_restored   *r = NULL;
    ch_status      rc = ch_checkpoint_restore(c, "usual", NULL, &r);

    ch_checkpoint_unref(c);
    return rc == CH_OK ? ch_restored_expect_partial(r) : NULL;
}

ch_status usual_found(void *arg, const ch_checkpoint_found *found)
{
    (void)arg;
    (void)found;
    return CH_OK;
}

ch_status usual_write_files(void)
{
    ch_record_writer *w = NULL;
    ch_status         rc = write_text("usual.csv", "x,y\n1,2\n3,4\n");

    if (rc == CH_OK)
        rc = write_checkpoint();

    if (rc == CH_OK)
        rc = write_text("usual.svm", "1 1:0.5 2:0.25\n");
    if (rc == CH_OK)
        rc = ch_npy_save("usual.npy", usual_tensor(), NULL);
    if (rc == CH_OK)
        rc = ch_npz_save("usual.npz", usual_tuple(), NULL);
    if (rc == CH_OK)
        rc = ch_idx_save("usual.idx", usual_tensor(), NULL);
    if (rc == CH_OK)
        rc = ch_record_writer_open("usual.tfrecord", NULL, &w);
    if (rc == CH_OK)
        rc = ch_record_writer_add_example(w, usual_example());
    return rc == CH_OK ? ch_record_writer_close(w) : rc;
}

ch_iterator *usual_iterator(void)
{
    static ch_iterator *it;

    if (it == NULL && ch_iterator_new(usual_dataset(), NULL, &it) != CH_OK)
        return NULL;
    return it;
}

ch_iterator *usual_distributed(void)
{
    static ch_iterator *it;

    if (it == NULL &&
        ch_strategy_distribute_dataset(usual_strategy(), usual_dataset(), NULL, &it) != CH_OK)
        return NULL;
    return it;
}

ch_example *usual_example(void)
{
    ch_example *e = NULL;

    if (ch_example_new(&e) != CH_OK || ch_example_set(e, "x", usual_tensor()) != CH_OK)
        return NULL;
    return e;
}

ch_record_writer *usual_writer(void)
{
    ch_record_writer *w = NULL;

    return ch_record_writer_open("written.tfrecord", NULL, &w) == CH_OK ? w : NULL;
}

static ch_status next_element(void *arg, ch_tuple **out)
{
    (void)arg;
    *out = usual_tuple();
    return CH_OK;
}

static const ch_tensor_spec element = {"x", CH_F32, {2, {2, 2}}};
const ch_generator usual_generator = {.spec = &element, .n_spec = 1, .next = next_element};

ch_status usual_map(void *arg, ch_tuple *in, ch_tuple **out)
{
    (void)arg;
    *out = ch_tuple_ref(in);
    return CH_OK;
}

ch_status usual_filter(void *arg, ch_tuple *in, bool *keep)
{
    (void)arg, (void)in;
    *keep = true;
    return CH_OK;
}

ch_dataset *usual_input(const ch_input_context *context, void *arg)
{
    (void)context, (void)arg;
    return usual_dataset();
}

ch_dataset *usual_dataset_fn(ch_dataset *of_element, void *arg)
{
    (void)arg;
    return of_element;
}

/* ---- models and training ---- */

ch_layer *usual_layer(void)
{
    return ch_layer_dense(2, NULL);
}

ch_layer *usual_built_layer(void)
{
    return ch_model_layer(usual_model());
}

ch_optimizer *usual_optimizer(void)
{
    static ch_optimizer *o;

    if (o == NULL && ch_optimizer_adam(0.1, NULL, NULL, &o) != CH_OK)
        return NULL;
    return o;
}

ch_optimizer *usual_averages(void)
{
    static ch_optimizer *o;
    ch_var              *v = usual_var();

    if (o == NULL &&
        (ch_optimizer_sgd(0.1, NULL, &(ch_optimizer_options){.average = 0.5}, &o) != CH_OK ||
         ch_strategy_enter(usual_strategy()) != CH_OK))
        return NULL;
    if (ch_optimizer_build(o, 1, &v) != CH_OK)
        return NULL;
    ch_strategy_leave();
    return o;
}

ch_model *usual_model(void)
{
    static ch_model *m;

    if (m == NULL &&
        (ch_model_new(usual_strategy(), usual_layer(),
                      &(ch_model_options){.n_inputs = 1, .input = {{CH_F32, {2, {-1, 2}}}}},
                      &m) != CH_OK ||
         ch_compile(m, &(ch_compile_options){.optimizer = usual_optimizer(),
                                             .loss = ch_loss_mse}) != CH_OK))
        return NULL;
    return m;
}

ch_metric *usual_metric(void)
{
    static ch_metric *m;

    if (m == NULL && ch_metric_new(usual_strategy(), ch_metric_mse(), &m) != CH_OK)
        return NULL;
    return m;
}

ch_callback *usual_callback(void)
{
    ch_callback *c = NULL;

    return ch_callback_stop_on_nan(1, &c) == CH_OK ? c : NULL;
}

ch_callback *usual_tensorboard(void)
{
    static ch_callback *c;

    if (c == NULL && ch_callback_tensorboard("board", NULL, &c) != CH_OK)
        return NULL;
    return c;
}

/* Trains usual_model for an epoch. */
static ch_status fit(ch_callback *c, ch_history **out)
{
    return ch_fit(usual_model(), (ch_data){.dataset = usual_dataset()},
                  &(ch_fit_options){.n_callbacks = c != NULL, .callback = &c}, out);
}

ch_history *usual_history(void)
{
    static ch_history *h;

    if (h == NULL && fit(NULL, &h) != CH_OK)
        return NULL;
    return h;
}

static ch_status on(void *self, ch_training *t, ch_event event)
{
    (void)self, (void)t, (void)event;
    return CH_OK;
}

const ch_callback_ops usual_callback_ops = {.name = "usual", .events = CH_ON_STEP, .on = on};

ch_status usual_callback_fn(ch_training *t, ch_event event, void *arg)
{
    (void)t, (void)event, (void)arg;
    return CH_OK;
}

ch_status usual_save(ch_training *t, bool best, void *arg)
{
    (void)t, (void)best, (void)arg;
    return CH_OK;
}

double usual_rate(int epoch, double rate, void *arg)
{
    (void)epoch, (void)arg;
    return rate;
}

static ch_node *call_layer(ch_layer *l, void *self, ch_step *s, int n_in, ch_node *const *in,
                           bool training)
{
    (void)l, (void)self, (void)s, (void)n_in, (void)training;
    return in[0];
}

const ch_layer_ops usual_layer_ops = {.type = "usual", .call = call_layer, .n_in = {1, 1}};

ch_node *usual_forward(ch_step *s, int n_in, ch_node *const *in, bool training,
                       ch_layer *const *layer, void *arg)
{
    (void)s, (void)n_in, (void)training, (void)layer, (void)arg;
    return in[0];
}

/* ---- clusters ---- */

ch_cluster *usual_cluster(void)
{
    static ch_cluster *c;

    if (c == NULL && ch_cluster_parse("chief|c:1,ps|p:1,worker|a:1;b:1", &c) != CH_OK)
        return NULL;
    return c;
}

ch_resolver *usual_resolver(void)
{
    static ch_resolver *r;

    if (r == NULL && ch_resolver_simple(usual_cluster(),
                                        &(ch_simple_options){.mine = {.task_type = "worker",
                                                                      .has_task_id = true}},
                                        &r) != CH_OK)
        return NULL;
    return r;
}

ch_slurm_options usual_slurm_options(void)
{
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_STEP_NUM_TASKS", "2", 1);
    setenv("SLURM_STEP_NODELIST", "n[1-2]", 1);
    setenv("SLURM_STEP_TASKS_PER_NODE", "1(x2)", 1);
    return (ch_slurm_options){.gpus_per_node = CH_OFF, .gpus_per_task = CH_OFF};
}

ch_resolver *usual_slurm(void)
{
    ch_slurm_options opt = usual_slurm_options();
    ch_resolver     *r = NULL;

    return ch_resolver_slurm(&opt, &r) == CH_OK ? r : NULL;
}

ch_resolver *usual_tpu(void)
{
    ch_resolver *r = NULL;

    return ch_resolver_tpu("local", NULL, &r) == CH_OK ? r : NULL;
}

ch_tpu_topology *usual_topology(void)
{
    static ch_tpu_topology *t;

    if (t == NULL && ch_tpu_topology_new(&(ch_tpu_mesh){.size = {2, 2, 1, 2}}, &t) != CH_OK)
        return NULL;
    return t;
}

ch_tpu_assignment *usual_assignment(void)
{
    static ch_tpu_assignment *a;
    static const ch_tpu_build build = {.n = 3, .shape = {1, 1, 2}, .replicas = 1};

    if (a == NULL && ch_tpu_assignment_build(usual_topology(), &build, &a) != CH_OK)
        return NULL;
    return a;
}

ch_local_cluster *usual_local_cluster(void)
{
    static ch_local_cluster *c;

    if (c == NULL && ch_cluster_local(&(ch_local_cluster_options){.devices = 2}, &c) != CH_OK)
        return NULL;
    return c;
}

ch_strategy *usual_servers(void)
{
    static ch_strategy *st;

    if (st == NULL && ch_strategy_parameter_server(
                          ch_local_cluster_resolver(usual_local_cluster()), NULL, &st) != CH_OK)
        return NULL;
    return st;
}

ch_coordinator *usual_coordinator(void)
{
    static ch_coordinator *c;

    if (c == NULL && ch_coordinator_new(usual_servers(), NULL, &c) != CH_OK)
        return NULL;
    return c;
}

ch_per_worker *usual_per_worker(void)
{
    static ch_per_worker *p;

    if (p == NULL && ch_coordinator_create_per_worker_dataset(usual_coordinator(),
                                                              usual_dataset(), &p) != CH_OK)
        return NULL;
    return p;
}

ch_remote *usual_remote(void)
{
    static ch_remote *r;

    if (r == NULL && ch_coordinator_schedule(usual_coordinator(), usual_function(),
                                             &(ch_arguments){.in = usual_tuple()}, &r) != CH_OK)
        return NULL;
    return r;
}

static ch_device *const *devices(void *self)
{
    static ch_device *device[2];

    (void)self;
    device[0] = ch_device_at(0);
    device[1] = ch_device_at(1);
    return device;
}

static ch_status place(void *self, const ch_var_spec *spec, ch_layout *out)
{
    (void)self, (void)spec;
    out->device[0] = ch_device_at(0);
    return CH_OK;
}

void usual_release(void *arg)
{
    (void)arg;
}

const ch_strategy_ops usual_strategy_ops = {"Usual", devices, place, usual_release};

static ch_status cluster_of(void *self, ch_cluster **out)
{
    (void)self;
    *out = ch_cluster_ref(usual_cluster());
    return CH_OK;
}

static ch_status self_of(void *self, ch_resolver_self *out)
{
    (void)self;
    snprintf(out->task_type, sizeof(out->task_type), "worker");
    out->task_id = 0;
    return CH_OK;
}

const ch_resolver_ops usual_resolver_ops = {
    .name = "usual", .cluster = cluster_of, .self = self_of, .close = usual_release};

/* ---- bytes ---- */

usual_bytes usual_encoded_graph(void)
{
    usual_bytes b = {0};

    return ch_graph_encode(usual_graph(), &b.bytes, &b.n) == CH_OK ? b : (usual_bytes){0};
}

usual_bytes usual_encoded_dataset(void)
{
    usual_bytes b = {0};

    return ch_dataset_encode(usual_dataset(), &b.bytes, &b.n) == CH_OK ? b : (usual_bytes){0};
}

usual_bytes usual_encoded_cluster(void)
{
    usual_bytes b = {0};

    return ch_cluster_encode(usual_cluster(), &b.bytes, &b.n) == CH_OK ? b : (usual_bytes){0};
}

usual_bytes usual_encoded_topology(void)
{
    usual_bytes b = {0};

    return ch_tpu_topology_encode(usual_topology(), &b.bytes, &b.n) == CH_OK ? b
                                                                             : (usual_bytes){0};
}

usual_bytes usual_place(void)
{
    usual_bytes b = {0};

    return ch_iterator_save(usual_iterator(), &b.bytes, &b.n) == CH_OK ? b : (usual_bytes){0};
}

/* ---- other functions that serve as arguments ---- */

ch_status usual_host(void *arg, int n_in, ch_tensor *const *in, int n_out,
                     ch_tensor *const *out)
{
    (void)arg, (void)n_in, (void)in, (void)n_out, (void)out;
    return CH_OK;
}

ch_status usual_values(const ch_value_context *c, void *arg, ch_tuple **out)
{
    (void)c, (void)arg;
    *out = usual_tuple();
    return CH_OK;
}

ch_status usual_creator(ch_var_spec *spec, void *arg)
{
    (void)spec, (void)arg;
    return CH_OK;
}

void usual_sink(const ch_log_record *record, void *arg)
{
    (void)record, (void)arg;
}

void usual_see(const char *node, int replica, int n, ch_tensor *const *out, void *arg)
{
    (void)node, (void)replica, (void)n, (void)out, (void)arg;
}

void usual_branch(ch_step *s, void *arg, ch_node **out)
{
    (void)s, (void)arg;
    out[0] = ch_neg(recording.x);
}

void usual_scan(ch_step *s, void *arg, ch_node *const *carry, ch_node *const *x, ch_node **next,
                ch_node **y)
{
    (void)s, (void)arg;
    next[0] = y[0] = ch_add(carry[0], x[0]);
}

ch_node *usual_while_test(ch_step *s, void *arg, ch_node *const *state)
{
    (void)arg;
    return ch_less(ch_sum_all(state[0]), ch_number(s, 100));
}

void usual_while_body(ch_step *s, void *arg, ch_node *const *state, ch_node **next)
{
    (void)arg;
    next[0] = ch_mul(state[0], ch_number(s, 2));
}

void usual_merge(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg)
{
    (void)s, (void)arg;
    if (n > 0)
        out[0] = ch_merge_reduce(CH_MEAN, in[0]);
}

void usual_pass(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg)
{
    (void)s, (void)arg;
    if (n > 0)
        out[0] = in[0];
}

void usual_update(ch_step *s, ch_var *v, int n, ch_node *const *in, ch_node **out, void *arg)
{
    (void)arg;
    if (n > 0)
        out[0] = ch_var_assign(s, v, in[0]);
}

/* ---- using results ---- */

bool use_status(ch_status rc)
{
    if (rc == CH_INTERNAL || (rc != CH_OK && ch_error_message()[0] == '\0')) {
        fprintf(stderr, "%s: \"%s\"\n", ch_status_name(rc), ch_error_message());
        _exit(HOSTILE_BROKEN);
    }
    return rc == CH_OK;
}

void use_char(const char *text)
{
    static volatile size_t length;

    length = text != NULL ? strlen(text) : length;
}

bool use_takes_gradients;

void use_node(ch_node *n)
{
    if (recording.is_body)
        return;
    ch_step_out(recording.s, NULL, n);
    if (use_takes_gradients)
        ch_step_out(recording.s, NULL, ch_gradient(n, recording.x));
}

void use_tensor(ch_tensor *t)
{
    char text[256];

    ch_tensor_print(t, text, sizeof(text));
}

void use_value(ch_value *v)
{
    char text[256];

    ch_value_print(v, text, sizeof(text));
}

void use_tuple(ch_tuple *t)
{
    char text[256];

    ch_tuple_print(t, text, sizeof(text));
}

void use_iterator(ch_iterator *it)
{
    ch_tuple *element_of = NULL;

    for (int i = 0; i < 3 && it != NULL; i++) {
        if (!use_status(ch_iterator_next(it, &element_of)) || element_of == NULL)
            return;
        use_tuple(element_of);
        ch_tuple_unref(element_of);
    }
}

void use_dataset(ch_dataset *d)
{
    char         text[256];
    ch_iterator *it = NULL;

    if (d == NULL)
        return;
    ch_dataset_print(d, text, sizeof(text));
    ch_dataset_cardinality(d);
    if (use_status(ch_iterator_new(d, NULL, &it)))
        use_iterator(it);
}

/* Records a step and runs it. If a step is being recorded already, adds to that step. */
static void in_step(ch_step_fn step, void *arg)
{
    ch_function *f = NULL;

    if (recording.s != NULL)
        step(recording.s, arg);
    else if (use_status(ch_function_new("use", step, arg, &f)))
        use_status(ch_strategy_run(usual_strategy(), f, usual_tuple(), NULL));
}

static void layer_step(ch_step *s, void *l)
{
    ch_step_out(s, NULL, ch_layer_call(l, s, ch_step_in(s, 0), true));
}

void use_layer(ch_layer *l)
{
    if (l != NULL)
        in_step(layer_step, l);
}

static void model_step(ch_step *s, void *m)
{
    ch_step_out(s, NULL, ch_model_call(m, s, ch_step_in(s, 0), true));
}

void use_model(ch_model *m)
{
    char text[256];

    if (m == NULL)
        return;
    in_step(model_step, m);
    ch_model_print(m, text, sizeof(text));
}

static void optimizer_step(ch_step *s, void *o)
{
    ch_var *v = usual_var();

    ch_optimizer_minimize(o, s, ch_sum_all(ch_var_read(s, v)), 1, &v);
}

void use_optimizer(ch_optimizer *o)
{
    usual_var();
    if (o != NULL)
        in_step(optimizer_step, o);
}

static void metric_step(ch_step *s, void *m)
{
    ch_metric_update(m, s, ch_step_in(s, 0), ch_step_in(s, 0), NULL);
}

void use_metric(ch_metric *m)
{
    double x;

    if (m == NULL)
        return;
    in_step(metric_step, m);
    use_status(ch_metric_result(m, &x));
}

void use_metric_spec(ch_metric_spec spec)
{
    ch_metric *m = NULL;

    if (use_status(ch_metric_new(usual_strategy(), spec, &m)))
        use_metric(m);
}

void use_callback(ch_callback *c)
{
    ch_history *h = NULL;

    if (c != NULL && use_status(fit(c, &h)))
        use_history(h);
}

void use_history(ch_history *h)
{
    char text[256];

    ch_history_print(h, text, sizeof(text));
    ch_history_print_time(h, text, sizeof(text));
    ch_history_plot(h, "loss", 40, 10, text, sizeof(text));
}

void use_strategy(ch_strategy *st)
{
    ch_tuple *out = NULL;
    ch_var   *v = NULL;

    if (st == NULL)
        return;
    if (use_status(ch_var_new(st, &(ch_var_spec){.shape = ch_shape_of(2)}, &v)))
        use_var(v);
    if (use_status(ch_strategy_run(st, usual_function(), usual_tuple(), &out)))
        use_tuple(out);
}

void use_var(ch_var *v)
{
    char       text[256];
    ch_tensor *t = NULL;

    if (v == NULL)
        return;
    ch_var_print(v, text, sizeof(text));
    if (use_status(ch_var_get(v, &t)))
        use_tensor(t);
}

void use_function(ch_function *f)
{
    if (f != NULL)
        use_status(ch_strategy_run(usual_strategy(), f, usual_tuple(), NULL));
}

void use_graph(ch_graph *g)
{
    char text[256];

    ch_graph_print(g, text, sizeof(text));
}

void use_table(ch_table *t)
{
    ch_tensor *out = NULL;

    if (t != NULL && use_status(ch_table_find(t, usual_ids(), &out)))
        use_tensor(out);
}

void use_cluster(ch_cluster *c)
{
    char text[256];

    ch_cluster_print(c, text, sizeof(text));
}

void use_resolver(ch_resolver *r)
{
    char        text[CH_MASTER_BYTES];
    ch_cluster *c = NULL;

    if (r == NULL)
        return;
    if (use_status(ch_resolver_cluster(r, &c)))
        use_cluster(c);
    use_status(ch_resolver_master(r, NULL, -1, NULL, text, sizeof(text)));
    use_status(ch_resolver_task_type(r, text, sizeof(text)));
}

void use_tpu_topology(ch_tpu_topology *t)
{
    int    task, ordinal;
    void  *bytes = NULL;
    size_t n;

    if (t == NULL)
        return;
    use_status(ch_tpu_topology_find(t, 4, (int[4]){0}, &task, &ordinal));
    if (use_status(ch_tpu_topology_encode(t, &bytes, &n)))
        ch_bytes_free(bytes);
}

void use_tpu_assignment(ch_tpu_assignment *a)
{
    int replica = ch_tpu_assignment_replicas(a) - 1, core = ch_tpu_assignment_cores(a) - 1;

    if (a == NULL)
        return;
    use_tpu_topology(ch_tpu_assignment_topology(a));
    use_status(ch_tpu_assignment_device_name(a, replica, core, "worker", usual_text,
                                             sizeof(usual_text)));
}

void use_remote(ch_remote *r)
{
    ch_tuple *out = NULL;

    if (r != NULL && use_status(ch_remote_fetch(r, &out)))
        use_tuple(out);
}

void use_per_worker(ch_per_worker *p)
{
    ch_remote *r = NULL;

    if (p != NULL &&
        use_status(ch_coordinator_schedule(usual_coordinator(), usual_function(),
                                           &(ch_arguments){.n_each = 1, .each = &p}, &r)))
        use_remote(r);
}

void use_init(ch_init init)
{
    ch_tensor *t = NULL;

    if (use_status(ch_init_tensor(&init, "w", CH_F32, ch_shape_of(2, 2), &t)))
        use_tensor(t);
}

void use_schedule(ch_schedule s)
{
    ch_optimizer *o = NULL;

    ch_schedule_at(&s, 0);
    ch_schedule_at(&s, INT64_MAX);
    if (use_status(ch_optimizer_sgd(0, NULL, &(ch_optimizer_options){.schedule = &s}, &o)))
        use_optimizer(o);
}

void use_partitioner(ch_partitioner p)
{
    ch_layout layout = {.n_copies = 0};

    use_status(ch_partitioner_divide(&p, &element, &layout));
}
