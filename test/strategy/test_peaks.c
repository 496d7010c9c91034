/* test/strategy/test_peaks.c -- the memory of the logical devices of a replica: a core needs
 * its share of the memory that one device needs, and arrays that every core has whole.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "base/config.h"
#include "cores.h"
#include "tensor/device.h"

enum { MOST_VARS = 12, MOST_STEPS = 8, CORES_MOST = 8, WHOLE = -1 };

/* A model that is trained with Adam. */
typedef struct model {
    ch_strategy *st;
    ch_shape     x, y; /* shapes of a batch of inputs and of wanted outputs */
    ch_node *(*record)(ch_step *s, struct model *m, ch_node *x);
    int           n_vars, n_read;
    ch_var       *v[MOST_VARS];
    ch_node      *read[MOST_VARS];
    ch_optimizer *o;
} model;

typedef struct outcome {
    ch_status rc;
    size_t    peak[CORES_MOST];
    double    loss[MOST_STEPS];
} outcome;

/* Reads the next variable, of which axis `axis` is split over all cores. Creates it when the
 * step is first recorded. */
static ch_node *var(ch_step *s, model *m, ch_shape shape, int axis)
{
    int i = m->n_read++, split[CH_MAX_RANK];

    for (int k = 0; k < shape.rank; k++)
        split[k] = k == axis ? 0 : CH_OFF;
    if (i == m->n_vars) {
        char name[16];

        (void)snprintf(name, sizeof(name), "v%d", i);
        t_ok(ch_var_new(m->st,
                        &(ch_var_spec){.name = name,
                                       .dtype = CH_F32,
                                       .shape = shape,
                                       .init = ch_init_uniform(-0.05, 0.05),
                                       .split = split,
                                       .n_split = shape.rank},
                        &m->v[m->n_vars++]));
    }
    return m->read[i] = ch_var_read(s, m->v[i]);
}

static void train(ch_step *s, void *arg)
{
    model   *m = arg;
    ch_node *loss;

    m->n_read = 0;
    loss = m->record(s, m, ch_step_in(s, 0));
    loss = ch_loss_average(ch_loss_mse(loss, ch_step_in(s, 1)), NULL);
    ch_optimizer_minimize(m->o, s, loss, m->n_vars, m->v);
    ch_step_out(s, "loss", ch_all_reduce(CH_SUM, loss));
}

/* Trains a model on n cores. COHORT_DEVICE_MEMORY is `limit`, 0: no limit. n 1: under OneDevice.
 */
static outcome train_on(int n, size_t limit, const model *like, int steps)
{
    model        m = *like;
    outcome      o = {CH_OK, {0}, {0}};
    ch_tensor   *t[2];
    ch_tuple    *in = NULL, *out = NULL;
    ch_function *f = NULL;
    char         bytes[32];

    (void)snprintf(bytes, sizeof(bytes), "%zu", limit);
    t_ok(ch__config_set("device_memory", bytes));
    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "GPU=8", .threads = 1}));
    t[0] = t_noise(m.x, 1);
    t[1] = t_noise(m.y, 2);
    t_ok(ch_tuple_of(2, t, &in));
    for (int i = 0; i < 2; i++)
        ch_tensor_unref(t[i]);
    if (n > 1)
        m.st = t_cores_strategy(1, n, NULL);
    else
        t_ok(ch_strategy_one_device("GPU:0", &m.st));
    t_ok(ch_optimizer_adam(0.001, NULL, NULL, &m.o));
    t_ok(ch_function_new("train", train, &m, &f));
    for (int i = 0; i < steps && o.rc == CH_OK; i++) {
        o.rc = ch_strategy_run(m.st, f, in, &out);
        if (o.rc == CH_OK)
            t_ok(ch_tensor_item(ch_value_at(ch_tuple_at(out, 0), 0), &o.loss[i]));
        ch_tuple_unref(out);
        out = NULL;
    }
    for (int c = 0; c < n; c++) {
        char       name[16];
        ch_device *d = NULL;

        (void)snprintf(name, sizeof(name), "GPU:%d", c);
        t_ok(ch_device_find(name, &d));
        o.peak[c] = ch_device_peak_bytes(d);
    }
    ch_function_unref(f);
    ch_tuple_unref(in);
    for (int i = 0; i < m.n_vars; i++)
        ch_var_unref(m.v[i]);
    ch_optimizer_unref(m.o);
    ch_strategy_unref(m.st);
    ch__devices_reset();
    return o;
}

/* Checks that a core needs at most 5 % more than its share, if every core has `whole` bytes of
 * whole arrays. */
static void check_peaks(const char *name, const model *like, size_t whole)
{
    outcome one = train_on(1, 0, like, 2);

    t_ok(one.rc);
    for (int n = 2; n <= CORES_MOST; n *= 2) {
        outcome o = train_on(n, 0, like, 2);
        double  most = ((double)(one.peak[0] - whole) / n + (double)whole) * 1.05;

        t_ok(o.rc);
        for (int c = 0; c < n; c++)
            if ((double)o.peak[c] > most)
                fail_msg("%s: core %d of %d needs %zu bytes, and one device %zu; want at most "
                         "%.0f",
                         name, c, n, o.peak[c], one.peak[0], most);
    }
}

/* ---- two layers ---- */

enum { ROWS = 32, IN = 784, HIDDEN = 4096, OUT = 512 };

static ch_node *dense(ch_step *s, model *m, ch_node *x, int64_t in, int64_t out, int axis)
{
    ch_node *kernel = var(s, m, ch_shape_of(in, out), axis);

    return ch_add(ch_matmul(x, false, kernel, false),
                  var(s, m, ch_shape_of(out), axis == 1 ? 0 : WHOLE));
}

static ch_node *by_units(ch_step *s, model *m, ch_node *x)
{
    return dense(s, m, ch_relu(dense(s, m, x, IN, HIDDEN, 1)), HIDDEN, OUT, 0);
}

static ch_node *by_columns(ch_step *s, model *m, ch_node *x)
{
    return dense(s, m, ch_relu(dense(s, m, x, IN, HIDDEN, 1)), HIDDEN, OUT, 1);
}

/* TPU-5.5 */
static void cores_of_a_split_perceptron_need_their_share_of_memory(void **state)
{
    const size_t output = sizeof(float) * ROWS * OUT, bias = sizeof(float) * OUT;

    (void)state;
    /* the result of the second layer, which the cores add up; its bias, with two slots */
    check_peaks(
        "by units",
        &(model){.x = ch_shape_of(ROWS, IN), .y = ch_shape_of(ROWS, OUT), .record = by_units},
        output + 3 * bias);
    /* the hidden layer, which the cores gather */
    check_peaks(
        "by columns",
        &(model){.x = ch_shape_of(ROWS, IN), .y = ch_shape_of(ROWS, OUT), .record = by_columns},
        sizeof(float) * ROWS * HIDDEN);
}

/* ---- a transformer block ---- */

enum { BATCH = 4, TIME = 64, WIDTH = 256, HEADS = 8 };

static ch_node *heads(ch_node *x)
{
    x = ch_reshape(x, ch_shape_of(-1, TIME, HEADS, WIDTH / HEADS));
    return ch_transpose(x, 4, (int[]){0, 2, 1, 3});
}

static ch_node *norm(ch_step *s, model *m, ch_node *x)
{
    ch_node *gamma = var(s, m, ch_shape_of(WIDTH), WHOLE);

    return ch_layer_norm(x, gamma, var(s, m, ch_shape_of(WIDTH), WHOLE), 1e-5);
}

static ch_node *product(ch_step *s, model *m, ch_node *x, int64_t in, int64_t out, int axis)
{
    return ch_matmul(x, false, var(s, m, ch_shape_of(in, out), axis), false);
}

static ch_node *block(ch_step *s, model *m, ch_node *x)
{
    ch_node *h = norm(s, m, x), *q, *k, *v;

    q = heads(product(s, m, h, WIDTH, WIDTH, 1));
    k = heads(product(s, m, h, WIDTH, WIDTH, 1));
    v = heads(product(s, m, h, WIDTH, WIDTH, 1));
    h = ch_attention(q, k, v, NULL, &(ch_attention_options){.causal = true});
    h = ch_reshape(ch_transpose(h, 4, (int[]){0, 2, 1, 3}), ch_shape_of(-1, TIME, WIDTH));
    x = ch_add(x, product(s, m, h, WIDTH, WIDTH, 0));
    h = ch_gelu(product(s, m, norm(s, m, x), WIDTH, 4 * WIDTH, 1));
    return ch_add(x, product(s, m, h, 4 * WIDTH, WIDTH, 0));
}

static void cores_of_a_split_block_need_their_share_of_memory(void **state)
{
    const size_t array = sizeof(float) * BATCH * TIME * WIDTH, gamma = sizeof(float) * WIDTH;

    (void)state;
    /* both normalised inputs, the sum behind the attention, the gradient of the output, and a
     * partial result of a product with its sum; four variables with two slots each */
    check_peaks("block",
                &(model){.x = ch_shape_of(BATCH, TIME, WIDTH),
                         .y = ch_shape_of(BATCH, TIME, WIDTH),
                         .record = block},
                6 * array + 4 * 3 * gamma);
}

/* ---- images that do not fit into the memory of one core ---- */

static ch_node *image(ch_step *s, model *m, ch_node *x)
{
    const ch_conv_options same = {.padding = CH_PAD_SAME};

    x = ch_mesh_split(x, 4, (int[]){CH_OFF, 0, CH_OFF, CH_OFF});
    x = ch_relu(ch_conv2d(x, var(s, m, ch_shape_of(3, 3, 3, 8), WHOLE), &same));
    x = ch_relu(ch_conv2d(x, var(s, m, ch_shape_of(3, 3, 8, 8), WHOLE), &same));
    return ch_conv2d(x, var(s, m, ch_shape_of(3, 3, 8, 1), WHOLE), &same);
}

/* Checks that the message of a refused step has all of these words, in this order. */
static void check_message(int n, const char *const *word)
{
    const char *at = ch_error_message();

    for (int i = 0; i < n; i++) {
        const char *next = strstr(at, word[i]);

        if (next == NULL)
            fail_msg("\"%s\" has no \"%s\" after \"%s\"", ch_error_message(), word[i],
                     i > 0 ? word[i - 1] : "");
        at = next + strlen(word[i]);
    }
}

static void images_larger_than_the_memory_of_a_core_train_on_four(void **state)
{
    const model like = {
        .x = ch_shape_of(2, 64, 48, 3), .y = ch_shape_of(2, 64, 48, 1), .record = image};
    outcome one = train_on(1, 0, &like, MOST_STEPS), four, refused;
    size_t  limit = one.peak[0] / 2;
    char    needs[64], has[64];

    (void)state;
    t_ok(one.rc);
    refused = train_on(1, limit, &like, 1);
    assert_int_equal(refused.rc, CH_RESOURCE_EXHAUSTED);
    (void)snprintf(needs, sizeof(needs), "needs %zu bytes on GPU:0 (", one.peak[0]);
    (void)snprintf(has, sizeof(has), "has %zu (", limit);
    check_message(
        11, (const char *[]){needs, has, "values: f32(2, 64, 48, 8) of ",
                             "at test_peaks.c:", "196608 bytes; ", "f32(2, 64, 48, 8) of ",
                             "at test_peaks.c:", "196608 bytes; ", "f32(2, 64, 48, 8) of ",
                             "at test_peaks.c:", "196608 bytes"});
    /* 16 rows of a core, and one of a neighbour */
    refused = train_on(4, limit / 8, &like, 1);
    assert_int_equal(refused.rc, CH_RESOURCE_EXHAUSTED);
    check_message(9,
                  (const char *[]){"on core 0 (GPU:0) (", "values: f32(2, 17, 48, 8) of ",
                                   ", moved, at test_peaks.c:", "52224 bytes; ",
                                   "f32(2, 17, 48, 8) of ", "at test_peaks.c:", "52224 bytes; ",
                                   "f32(2, 17, 48, 8) of ", "at test_peaks.c:"});
    assert_null(strstr(ch_error_message(), "exchange"));
    four = train_on(4, limit, &like, MOST_STEPS);
    t_ok(four.rc);
    for (int c = 0; c < 4; c++)
        assert_true(four.peak[c] <= limit);
    assert_true(one.loss[MOST_STEPS - 1] < one.loss[0]);
    for (int i = 0; i < MOST_STEPS; i++)
        if (!(fabs(four.loss[i] - one.loss[i]) <= 1e-4))
            fail_msg("loss %d is %.9g, want %.9g", i, four.loss[i], one.loss[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cores_of_a_split_perceptron_need_their_share_of_memory),
        cmocka_unit_test(cores_of_a_split_block_need_their_share_of_memory),
        cmocka_unit_test(images_larger_than_the_memory_of_a_core_train_on_four),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
