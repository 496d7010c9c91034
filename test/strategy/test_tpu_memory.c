/* test/strategy/test_tpu_memory.c -- the options of TPUStrategy that save memory: with split_rows
 * and split_bytes each of eight cores keeps an eighth of every variable and slot, and
 * reshard_after_forward frees the values of variables that a core has gathered.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "tensor/device.h"
#include "tpu.h"

enum { CLASSES = 10, MOST_LAYERS = 8, STEPS = 2, MOST_VARS = 64 };

/* A perceptron with layers of equal size, and the rows of a batch. */
typedef struct shape {
    int rows, in, units, layers;
} shape;

/* A perceptron that is trained with Adam. */
typedef struct trained {
    ch_strategy  *st;
    ch_model     *m;
    ch_optimizer *o;
    ch_function  *f;
    ch_tuple     *batch;
} trained;

/* What a training needs and moves. */
typedef struct cost {
    int64_t peak;            /* of the core that needs most memory */
    int64_t vars, largest;   /* bytes of the trained variables, and of the largest layer */
    int64_t moved, gathered; /* bytes in a step, between all cores; of these in all-gathers */
    int64_t reduced;         /* in all-reduces */
    float   loss;
} cost;

static void record(ch_step *s, void *arg)
{
    trained       *t = arg;
    ch_node       *y = ch_model_call(t->m, s, ch_step_in(s, 0), true), *loss;
    ch_var *const *v;
    int            n = ch_model_trainable(t->m, &v);

    loss = ch_loss_average(ch_loss_sparse_categorical(y, ch_step_in(s, 1)), NULL);
    ch_optimizer_minimize(t->o, s, loss, n, v);
    ch_step_out(s, "loss", ch_all_reduce(CH_SUM, loss));
}

/* Begins a training. Takes over the reference to the strategy. */
static void begin(ch_strategy *st, const shape *n, trained *t)
{
    ch_layer_dense_options hidden = {.activation = CH_RELU};
    ch_layer              *layer[MOST_LAYERS];
    ch_model_options       in = {.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, n->in)}}};
    ch_tensor             *x[2] = {t_noise(ch_shape_of(n->rows, n->in), 1)};

    *t = (trained){.st = st};
    for (int i = 0; i < n->layers; i++)
        layer[i] = i < n->layers - 1 ? ch_layer_dense(n->units, &hidden)
                                     : ch_layer_dense(CLASSES, NULL);
    t_ok(ch_model_new(st, ch_layer_sequential("net", n->layers, layer), &in, &t->m));
    t_ok(ch_optimizer_adam(0.001, NULL, NULL, &t->o));
    t_ok(ch_function_new("train", record, t, &t->f));
    t_ok(ch_tensor_new(CH_I32, ch_shape_of(n->rows), &x[1]));
    for (int i = 0; i < n->rows; i++)
        ((int32_t *)ch_tensor_data_mut(x[1]))[i] = i % CLASSES;
    t_ok(ch_tuple_of(2, x, &t->batch));
    for (int i = 0; i < 2; i++)
        ch_tensor_unref(x[i]);
}

static float train(const trained *t, int steps)
{
    double loss = 0;

    for (int i = 0; i < steps; i++) {
        ch_tuple *out = NULL;

        t_ok(ch_strategy_run(t->st, t->f, t->batch, &out));
        t_ok(ch_tensor_item(ch_value_at(ch_tuple_at(out, 0), 0), &loss));
        ch_tuple_unref(out);
    }
    return (float)loss;
}

static void end(const trained *t)
{
    ch_function_unref(t->f);
    ch_tuple_unref(t->batch);
    ch_optimizer_unref(t->o);
    ch_model_unref(t->m);
    ch_strategy_unref(t->st);
}

/* Lists the variables of the model and of the optimizer. Returns their number. */
static int all_vars(const trained *t, ch_var **out)
{
    ch_var *const *v;
    int            n = ch_model_vars(t->m, &v), n_slots;

    memcpy(out, v, (size_t)n * sizeof(*out));
    n_slots = ch_optimizer_vars(t->o, &v);
    assert_in_range(n + n_slots, 1, MOST_VARS);
    memcpy(out + n, v, (size_t)n_slots * sizeof(*out));
    return n + n_slots;
}

/* Checks that each core has an eighth of every variable and slot. The numbers of the optimizer,
 * such as its iterations, are on all cores. */
static void check_tiles(const trained *t)
{
    ch_var *v[MOST_VARS];
    int     n = all_vars(t, v);

    for (int i = 0; i < n; i++) {
        ch_shape s = ch_var_shape(v[i]);
        int64_t  whole = 1, longest = 1, sum = 0;

        for (int k = 0; k < s.rank; k++) {
            whole *= s.dim[k];
            longest = s.dim[k] > longest ? s.dim[k] : longest;
        }
        for (int c = 0; c < T_TPUS && s.rank > 0; c++) {
            ch_tensor *tile = NULL;

            t_ok(ch_var_get_tile(v[i], 0, c, &tile));
            assert_true(ch_tensor_count(tile) <=
                        whole / longest * ((longest + T_TPUS - 1) / T_TPUS));
            sum += ch_tensor_count(tile);
            ch_tensor_unref(tile);
        }
        assert_true(s.rank == 0 || sum == whole);
    }
}

static void count_vars(const trained *t, cost *c)
{
    ch_var *const *v;
    int            n = ch_model_trainable(t->m, &v);

    for (int i = 0; i < n; i++) {
        ch_shape s = ch_var_shape(v[i]);
        int64_t  bytes = sizeof(float);

        for (int k = 0; k < s.rank; k++)
            bytes *= s.dim[k];
        c->vars += bytes;
        c->largest = bytes > c->largest ? bytes : c->largest;
    }
}

/* Trains on eight cores, or on one device if `opt` is NULL. */
static cost cost_of(const shape *n, const ch_tpu_options *opt)
{
    cost             c = {0};
    ch_layout_report r;
    ch_strategy     *one = NULL;
    trained          t;

    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "TPU=8", .threads = 1}));
    if (opt == NULL)
        t_ok(ch_strategy_one_device("TPU:0", &one));
    begin(opt == NULL ? one : t_tpu_with(1, T_TPUS, opt), n, &t);
    c.loss = train(&t, STEPS);
    count_vars(&t, &c);
    if (opt != NULL)
        check_tiles(&t);
    t_ok(ch_function_report_layouts(t.f, NULL, &r));
    for (int i = 0; i < r.devices; i++)
        c.peak = r.peak_bytes[i] > c.peak ? r.peak_bytes[i] : c.peak;
    c.gathered = r.all_gather.bytes;
    c.reduced = r.all_reduce.bytes;
    c.moved = r.all_reduce.bytes + r.reduce_scatter.bytes + r.all_gather.bytes +
              r.all_to_all.bytes + r.halo.bytes + r.other.bytes;
    end(&t);
    ch__devices_reset();
    return c;
}

/* Checks that a core needs at most 5 % more than its share of the memory of one device, and the
 * largest layer whole. A product needs up to `panels` bytes for packed panels, on every core. */
static void check_peak(const cost *one, const cost *c, int64_t panels)
{
    double most = 1.05 * ((double)one->peak / T_TPUS + (double)c->largest + (double)panels);

    if ((double)c->peak > most)
        fail_msg("a core needs %lld bytes, want at most %.0f", (long long)c->peak, most);
}

static void check_close(float a, float b)
{
    if (!(a - b <= 1e-4f * b && b - a <= 1e-4f * b))
        fail_msg("the loss is %.9g, want %.9g", (double)a, (double)b);
}

/* The sizes of examples/sharded.c. */
static void core_keeps_an_eighth_of_variables_slots_and_activations(void **state)
{
    const shape n = {.rows = 128, .in = 64, .units = 512, .layers = 6};
    cost        one = cost_of(&n, NULL);

    (void)state;
    for (int spmd = 0; spmd < 2; spmd++) {
        cost c = cost_of(
            &n, &(ch_tpu_options){.spmd = spmd == 1, .split_rows = true, .split_bytes = 32});

        check_close(c.loss, one.loss);
        check_peak(&one, &c, 0);
        assert_true(c.moved <= 2 * (T_TPUS - 1) * c.vars);
    }
}

/* The batch is so large that kernels are gathered rather than activations: before a layer, and
 * with reshard_after_forward again for the gradient of its input. Gradients are scattered as
 * they are added up. */
static void gathered_values_are_freed_after_the_forward_pass(void **state)
{
    const shape    n = {.rows = 2048, .in = 256, .units = 256, .layers = 7};
    const int64_t  kernel = sizeof(float) * 256 * 256;
    ch_tpu_options opt = {.spmd = true, .split_rows = true, .split_bytes = 32};
    cost           one = cost_of(&n, NULL), held = cost_of(&n, &opt), freed;
    int64_t        most = (T_TPUS - 1) * held.vars; /* bytes of gathering everything once */

    (void)state;
    opt.reshard_after_forward = true;
    freed = cost_of(&n, &opt);
    check_close(held.loss, one.loss);
    assert_true(held.loss == freed.loss);
    assert_int_equal(held.gathered, most);
    assert_int_equal(held.moved - held.reduced, 2 * most);
    /* no gradient needs the first kernel and the biases, or the last kernel after its use */
    assert_in_range(freed.gathered, most + (T_TPUS - 1) * 5 * kernel,
                    most +
                        (T_TPUS - 1) * (5 * kernel + (int64_t)sizeof(float) * 256 * CLASSES));
    assert_true(freed.moved - freed.reduced <= 3 * most);
    assert_true(freed.peak <= held.peak - 4 * kernel);
    check_peak(&one, &freed, 512 * 1024);
}

/* ---- checkpoints ---- */

static ch_strategy *on_cores(int n, const ch_tpu_options *opt)
{
    ch_strategy *st = NULL;

    t_ok(t_tpu_new("virtual:1x1x1x8",
                   &(ch_tpu_build){.n = 3, .shape = {1, 1, n}, .replicas = 1}, opt, &st));
    return st;
}

static ch_checkpoint *checkpoint_of(const trained *t)
{
    ch_checkpoint *c = NULL;

    t_ok(ch_checkpoint_new(&c));
    t_ok(ch_checkpoint_add_model(c, "model", t->m));
    t_ok(ch_checkpoint_add_optimizer(c, "optimizer", t->o));
    return c;
}

static void same_values(const trained *a, const trained *b)
{
    ch_var *v[MOST_VARS], *w[MOST_VARS];
    int     n = all_vars(a, v);

    assert_int_equal(all_vars(b, w), n);
    for (int i = 0; i < n; i++) {
        ch_tensor *x = NULL, *y = NULL;

        t_ok(ch_var_get(v[i], &x));
        t_ok(ch_var_get(w[i], &y));
        assert_string_equal(ch_var_name(v[i]), ch_var_name(w[i]));
        assert_int_equal(ch_tensor_bytes(x), ch_tensor_bytes(y));
        assert_memory_equal(ch_tensor_data(x), ch_tensor_data(y), ch_tensor_bytes(x));
        ch_tensor_unref(x);
        ch_tensor_unref(y);
    }
}

static void values_and_slots_of_eight_cores_are_loaded_on_any_number(void **state)
{
    static const int     cores[] = {1, 2, 3, 5, 8};
    const shape          n = {.rows = 16, .in = 12, .units = 30, .layers = 3};
    const ch_tpu_options opt = {.spmd = true, .split_rows = true, .split_bytes = 32};
    char                 dir[] = "/tmp/tpu-XXXXXX", path[64], saved[256], command[64];
    ch_checkpoint       *c;
    trained              eight;

    (void)state;
    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "TPU=8", .threads = 1}));
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof(path), "%s/run", dir);
    begin(on_cores(T_TPUS, &opt), &n, &eight);
    (void)train(&eight, 3);
    c = checkpoint_of(&eight);
    t_ok(ch_checkpoint_save(c, path, NULL, saved, sizeof(saved)));
    t_ok(ch_checkpoint_wait(c));
    ch_checkpoint_unref(c);
    for (size_t i = 0; i < sizeof(cores) / sizeof(cores[0]); i++) {
        trained few;

        begin(on_cores(cores[i], &opt), &n, &few);
        (void)train(&few, 1); /* makes the slots */
        c = checkpoint_of(&few);
        t_ok(ch_checkpoint_restore(c, saved, NULL, NULL));
        same_values(&eight, &few);
        ch_checkpoint_unref(c);
        end(&few);
    }
    end(&eight);
    (void)snprintf(command, sizeof(command), "rm -r %s", dir);
    assert_int_equal(system(command), 0);
    ch__devices_reset();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(core_keeps_an_eighth_of_variables_slots_and_activations),
        cmocka_unit_test(gathered_values_are_freed_after_the_forward_pass),
        cmocka_unit_test(values_and_slots_of_eight_cores_are_loaded_on_any_number),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
