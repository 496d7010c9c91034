/* test/train/test_layer.c -- layers as objects, and layers with at most a single product.
 *
 * The tests cover names, variables, errors, sharing, layers that the program defines, and the
 * layers dense, flatten, reshape, pools, dropout and activations.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "layer_help.h"

/* ---- dense ---- */

/* Computes tanh(x . kernel + bias) without the library. */
static void dense_reference(int rows, int in, int out, const float *x, const float *kernel,
                            const float *bias, float *y)
{
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < out; o++) {
            double sum = bias != NULL ? bias[o] : 0;

            for (int i = 0; i < in; i++)
                sum += (double)x[r * in + i] * kernel[i * out + o];
            y[r * out + o] = (float)tanh(sum);
        }
}

static void dense_is_a_product_a_bias_and_an_activation(void **state)
{
    ch_layer  *l = ch_layer_dense(5, &(ch_layer_dense_options){.activation = CH_TANH});
    ch_tensor *x = t_noise(ch_shape_of(4, 3), 1), *once;
    float      want[20], *kernel, *bias;

    once = t_apply(l, ch_tensor_ref(x)); /* makes the variables */
    ch_tensor_unref(once);
    t_fill(l, "kernel", 2);
    t_fill(l, "bias", 3);
    kernel = t_values(l, "kernel");
    bias = t_values(l, "bias");
    dense_reference(4, 3, 5, ch_tensor_data(x), kernel, bias, want);
    t_is(t_apply(l, x), ch_shape_of(4, 5), want, 1e-6);
    free(kernel);
    free(bias);
    ch_layer_unref(l);
    (void)state;
}

static void dense_takes_any_number_of_axes_before_the_last(void **state)
{
    ch_layer *l =
        ch_layer_dense(2, &(ch_layer_dense_options){.bias = CH_OFF, .activation = CH_TANH});
    ch_tensor *x = t_noise(ch_shape_of(2, 3, 4), 1);
    float      want[12], *kernel;

    ch_tensor_unref(t_apply(l, t_noise(ch_shape_of(7, 4), 1)));
    assert_null(ch_layer_var(l, "bias"));
    kernel = t_values(l, "kernel");
    dense_reference(6, 4, 2, ch_tensor_data(x), kernel, NULL, want);
    t_is(t_apply(l, x), ch_shape_of(2, 3, 2), want, 1e-6);
    free(kernel);
    ch_layer_unref(l);
    (void)state;
}

static void dense_starts_from_glorots_uniform_and_zeros(void **state)
{
    ch_layer  *l = ch_layer_named("first", ch_layer_dense(50, NULL));
    ch_init    init = ch_init_glorot_uniform();
    ch_tensor *want = NULL;
    float     *kernel, *bias;

    ch_tensor_unref(t_apply(l, t_noise(ch_shape_of(1, 30), 1)));
    t_ok(ch_init_tensor(&init, "first/kernel", CH_F32, ch_shape_of(30, 50), &want));
    kernel = t_values(l, "kernel");
    bias = t_values(l, "bias");
    assert_memory_equal(kernel, ch_tensor_data(want), 30 * 50 * sizeof(float));
    for (int i = 0; i < 50; i++)
        assert_true(bias[i] == 0);
    ch_tensor_unref(want);
    free(kernel);
    free(bias);
    ch_layer_unref(l);
    (void)state;
}

static void layer_seed_changes_the_initial_values(void **state)
{
    ch_layer  *a = ch_layer_dense(3, NULL), *b = ch_layer_dense(3, NULL);
    ch_tensor *x = t_noise(ch_shape_of(1, 3), 1);
    float     *of_a, *of_b;

    ch_layer_set_seed(b, 7);
    ch_tensor_unref(t_apply(a, ch_tensor_ref(x)));
    of_a = t_values(a, "kernel");
    ch_layer_unref(a); /* the names of its variables are free again */
    ch_tensor_unref(t_apply(b, x));
    of_b = t_values(b, "kernel");
    assert_memory_not_equal(of_a, of_b, 9 * sizeof(float));
    free(of_a);
    free(of_b);
    ch_layer_unref(b);
    (void)state;
}

static void layer_error_names_the_layer_and_both_widths(void **state)
{
    ch_layer *l = ch_layer_sequential("net", 1, (ch_layer *[]){ch_layer_dense(5, NULL)});

    ch_tensor_unref(t_apply(l, t_noise(ch_shape_of(4, 3), 1)));
    t_refuses(l, t_noise(ch_shape_of(4, 6), 1), "f32(?, 6), but the layer was built for 3",
              "in net/dense");
    t_refuses(l, t_noise(ch_shape_of(4, 6), 1), "in net/dense", "at layer_help.h");
    ch_layer_unref(l);
    (void)state;
}

/* ---- names and variables ---- */

static ch_layer *two_blocks(void)
{
    ch_layer *block[2];

    for (int i = 0; i < 2; i++)
        block[i] =
            ch_layer_sequential("block", 2,
                                (ch_layer *[]){ch_layer_dense(4, NULL),
                                               ch_layer_named("out", ch_layer_dense(3, NULL))});
    return ch_layer_sequential("net", 3,
                               (ch_layer *[]){block[0], block[1], ch_layer_dense(1, NULL)});
}

static void layer_variable_names_are_unique_paths(void **state)
{
    static const char *const want[] = {
        "net/block/dense/kernel", "net/block/dense/bias",     "net/block/out/kernel",
        "net/block/out/bias",     "net/block_1/dense/kernel", "net/block_1/dense/bias",
        "net/block_1/out/kernel", "net/block_1/out/bias",     "net/dense/kernel",
        "net/dense/bias",
    };
    ch_layer        *l = two_blocks();
    ch_layer *const *child;
    ch_var *const   *v;

    assert_int_equal(ch_layer_vars(l, &v), 0); /* not called yet */
    ch_tensor_unref(t_apply(l, t_noise(ch_shape_of(2, 5), 1)));
    assert_int_equal(ch_layer_vars(l, &v), 10);
    for (int i = 0; i < 10; i++)
        assert_string_equal(ch_var_name(v[i]), want[i]);
    assert_int_equal(ch_layer_trainable(l, &v), 10);
    assert_ptr_equal(ch_layer_var(l, "block_1/out/bias"), v[7]);
    assert_null(ch_layer_var(l, "block_1/out/nothing"));
    assert_null(ch_layer_var(l, "nowhere/out/bias"));
    assert_int_equal(ch_layer_children(l, &child), 3);
    assert_string_equal(ch_layer_name(child[1]), "block_1");
    assert_string_equal(ch_layer_type(child[1]), "sequential");
    ch_layer_unref(l);
    (void)state;
}

static void layer_names_of_siblings_are_numbered(void **state)
{
    ch_layer *l =
        ch_layer_sequential(NULL, 4,
                            (ch_layer *[]){ch_layer_dense(1, NULL),
                                           ch_layer_named("dense_1", ch_layer_dense(1, NULL)),
                                           ch_layer_dense(1, NULL), ch_layer_dense(1, NULL)});
    ch_layer *const *child;

    assert_string_equal(ch_layer_name(l), "sequential");
    assert_int_equal(ch_layer_children(l, &child), 4);
    assert_string_equal(ch_layer_name(child[0]), "dense");
    assert_string_equal(ch_layer_name(child[1]), "dense_1");
    assert_string_equal(ch_layer_name(child[2]), "dense_2");
    assert_string_equal(ch_layer_name(child[3]), "dense_3");
    ch_layer_unref(l);
    (void)state;
}

/* ---- sharing ---- */

static ch_node *add_both(ch_step *s, int n, ch_node *const *in, bool training,
                         ch_layer *const *layer, void *arg)
{
    (void)arg;
    assert_int_equal(n, 2);
    return ch_add(ch_layer_call(layer[0], s, in[0], training),
                  ch_layer_call(layer[0], s, in[1], training));
}

static void a_layer_that_is_called_twice_shares_its_variables(void **state)
{
    ch_layer *inner =
        ch_layer_dense(2, &(ch_layer_dense_options){.bias = CH_OFF, .activation = CH_TANH});
    ch_layer      *l = ch_layer_function("both", add_both, NULL, 1, &inner);
    ch_tensor     *a = t_noise(ch_shape_of(3, 4), 1), *b = t_noise(ch_shape_of(3, 4), 2);
    ch_tensor     *y = t_apply_n(l, 2, (ch_tensor *[]){ch_tensor_ref(a), ch_tensor_ref(b)});
    ch_var *const *v;
    float          want[6], more[6], *kernel;

    assert_int_equal(ch_layer_vars(l, &v), 1);
    assert_string_equal(ch_var_name(v[0]), "both/dense/kernel");
    kernel = t_values(l, "dense/kernel");
    dense_reference(3, 4, 2, ch_tensor_data(a), kernel, NULL, want);
    dense_reference(3, 4, 2, ch_tensor_data(b), kernel, NULL, more);
    for (int i = 0; i < 6; i++)
        want[i] += more[i];
    t_is(y, ch_shape_of(3, 2), want, 1e-6);
    free(kernel);
    ch_tensor_unref(a);
    ch_tensor_unref(b);
    ch_layer_unref(l);
    (void)state;
}

static void layer_with_two_parents_is_listed_once(void **state)
{
    ch_layer *shared = ch_layer_dense(3, NULL);
    ch_layer *inner = ch_layer_sequential("inner", 1, (ch_layer *[]){ch_layer_ref(shared)});
    ch_layer *l = ch_layer_sequential("net", 2, (ch_layer *[]){inner, shared});
    ch_var *const *v;

    ch_tensor_unref(t_apply(l, t_noise(ch_shape_of(2, 3), 1)));
    assert_int_equal(ch_layer_vars(l, &v), 2);
    assert_string_equal(ch_var_name(v[0]), "net/inner/dense/kernel");
    ch_layer_unref(l);
    (void)state;
}

/* A shared layer keeps its name. A new layer with the same name is renamed, wherever it is in
 * the net. */
static void layer_names_are_unique_beside_shared_layers(void **state)
{
    ch_layer *a = ch_layer_dense(3, NULL), *b = ch_layer_dense(3, NULL);
    ch_layer *first = ch_layer_sequential("first", 1, (ch_layer *[]){a});
    ch_layer *second = ch_layer_sequential("second", 1, (ch_layer *[]){b});
    ch_layer *mixed =
        ch_layer_sequential("mixed", 4,
                            (ch_layer *[]){ch_layer_dense(3, NULL), ch_layer_ref(a),
                                           ch_layer_dense(3, NULL), ch_layer_ref(a)});
    ch_layer *const *child = NULL;

    assert_int_equal(ch_layer_children(mixed, &child), 4);
    assert_string_equal(ch_layer_name(child[0]), "dense_1");
    assert_string_equal(ch_layer_name(child[1]), "dense");
    assert_string_equal(ch_layer_name(child[2]), "dense_2");
    assert_ptr_equal(child[3], child[1]); /* the same layer twice is not a second layer */
    ch_tensor_unref(t_apply(mixed, t_noise(ch_shape_of(2, 3), 1)));
    assert_string_equal(ch_var_name(ch_layer_var(mixed, "dense/kernel")), "first/dense/kernel");
    assert_string_equal(ch_var_name(ch_layer_var(mixed, "dense_1/kernel")),
                        "mixed/dense_1/kernel");
    assert_null(
        ch_layer_sequential("both", 2, (ch_layer *[]){ch_layer_ref(a), ch_layer_ref(b)}));
    assert_non_null(strstr(ch_error_message(), "two of its layers"));
    assert_non_null(strstr(ch_error_message(), "\"dense\""));
    ch_layer_unref(mixed);
    ch_layer_unref(first);
    ch_layer_unref(second);
    (void)state;
}

static void layer_names_of_20000_siblings_are_found_quickly(void **state)
{
    enum { MANY = 20000 };
    ch_layer       **l = calloc(MANY, sizeof(ch_layer *)), *all;
    ch_layer *const *child = NULL;

    assert_non_null(l);
    for (int i = 0; i < MANY; i++)
        l[i] =
            i == 1 ? ch_layer_named("dropout_2", ch_layer_dropout(0.1)) : ch_layer_dropout(0.1);
    all = ch_layer_sequential(NULL, MANY, l);
    assert_int_equal(ch_layer_children(all, &child), MANY);
    assert_string_equal(ch_layer_name(child[0]), "dropout");
    assert_string_equal(ch_layer_name(child[2]), "dropout_1");
    assert_string_equal(ch_layer_name(child[3]), "dropout_3"); /* the second name is in use */
    assert_string_equal(ch_layer_name(child[MANY - 1]), "dropout_19999");
    ch_layer_unref(all);
    free(l);
    (void)state;
}

/* ---- recording again, replicas, dtypes ---- */

static void layer_uses_the_same_variables_for_other_numbers_of_rows_and_axes(void **state)
{
    t_call         c = {.layer = ch_layer_dense(2, NULL)};
    ch_function   *f = t_function(t_forward, &c);
    const ch_shape shape[] = {ch_shape_of(4, 3), ch_shape_of(0, 3), ch_shape_of(9, 3),
                              ch_shape_of(2, 5, 3)};
    ch_var        *kernel = NULL;

    for (int i = 0; i < 4; i++) {
        ch_tensor *x = t_noise(shape[i], 1);
        ch_tuple  *in = t_tuple(1, &x), *out = NULL;

        t_ok(ch_strategy_run(NULL, f, in, &out));
        kernel = i == 0 ? ch_layer_var(c.layer, "kernel") : kernel;
        assert_ptr_equal(kernel, ch_layer_var(c.layer, "kernel"));
        ch_tuple_unref(in);
        ch_tuple_unref(out);
    }
    assert_int_equal(ch_function_recordings(f), 2);
    ch_function_unref(f);
    ch_layer_unref(c.layer);
    (void)state;
}

static void layer_variables_stay_equal_on_all_replicas(void **state)
{
    ch_strategy   *st = NULL;
    ch_layer      *l = two_blocks();
    ch_tensor     *x = t_noise(ch_shape_of(6, 5), 1);
    ch_var *const *v;

    t_ok(ch_strategy_mirrored(NULL, &st));
    t_learns(st, l, 0.05, 1, &x);
    assert_int_equal(ch_layer_vars(l, &v), 10);
    for (int i = 0; i < 10; i++) {
        assert_ptr_equal(ch_var_strategy(v[i]), st);
        for (int64_t k = 0; k < ch_shape_count(ch_var_shape(v[i])); k++)
            assert_true(t_copy_of(v[i], 0, (int)k) == t_copy_of(v[i], 1, (int)k));
    }
    ch_layer_unref(l);
    ch_strategy_unref(st);
    (void)state;
}

static void layer_set_dtype_sets_the_dtype_of_variables(void **state)
{
    static const ch_dtype dtype[] = {CH_F64, CH_BF16, CH_F16};

    for (int i = 0; i < 3; i++) {
        ch_layer      *l = two_blocks();
        ch_tensor     *x = t_noise(ch_shape_of(6, 5), 1), *y;
        ch_var *const *v;

        ch_layer_set_dtype(l, dtype[i]);
        y = t_apply(l, ch_tensor_ref(x));
        assert_int_equal(ch_tensor_dtype(y), dtype[i]);
        ch_tensor_unref(y);
        assert_int_equal(ch_layer_vars(l, &v), 10);
        for (int k = 0; k < 10; k++)
            assert_int_equal(ch_var_dtype(v[k]), dtype[i]);
        t_learns(NULL, l, 0.05, 1, &x);
        ch_layer_set_dtype(l, CH_F32); /* too late: the variables exist */
        y = t_apply(l, t_noise(ch_shape_of(6, 5), 1));
        assert_int_equal(ch_tensor_dtype(y), dtype[i]);
        ch_tensor_unref(y);
        ch_layer_unref(l);
    }
    (void)state;
}

/* ---- layers without variables ---- */

static void activations_have_their_known_values(void **state)
{
    static const float x[] = {-2, -0.5f, 0, 1.5f};
    static const struct {
        ch_activation a;
        float         y[4];
    } want[] = {
        {CH_LINEAR, {-2, -0.5f, 0, 1.5f}},
        {CH_RELU, {0, 0, 0, 1.5f}},
        {CH_LEAKY_RELU, {-0.4f, -0.1f, 0, 1.5f}},
        {CH_ELU, {-0.86466472f, -0.39346934f, 0, 1.5f}},
        {CH_GELU, {-0.04550026f, -0.15426877f, 0, 1.39978919f}},
        {CH_SILU, {-0.23840584f, -0.18877033f, 0, 1.22636171f}},
        {CH_TANH, {-0.96402758f, -0.46211716f, 0, 0.90514825f}},
        {CH_SIGMOID, {0.11920292f, 0.37754067f, 0.5f, 0.81757448f}},
        {CH_SOFTPLUS, {0.12692801f, 0.47407698f, 0.69314718f, 1.70141328f}},
        {CH_SOFTMAX, {0.02174566f, 0.09745727f, 0.16067987f, 0.72011721f}},
    };

    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        ch_layer *l = ch_layer_activation(want[i].a);

        t_is(t_apply(l, t_f32(ch_shape_of(1, 4), x)), ch_shape_of(1, 4), want[i].y, 3e-6);
        ch_layer_unref(l);
    }
    (void)state;
}

static void flatten_and_reshape_layers_keep_the_elements(void **state)
{
    ch_layer    *flat = ch_layer_flatten(), *shaped = ch_layer_reshape(ch_shape_of(2, -1));
    ch_tensor   *x = t_noise(ch_shape_of(2, 3, 4), 1);
    const float *data = ch_tensor_data(x);

    t_is(t_apply(flat, ch_tensor_ref(x)), ch_shape_of(2, 12), data, 0);
    t_is(t_apply(shaped, ch_tensor_ref(x)), ch_shape_of(2, 2, 6), data, 0);
    t_is(t_apply(flat, t_noise(ch_shape_of(0, 3, 4), 1)), ch_shape_of(0, 12), NULL, 0);
    t_is(t_apply(shaped, t_noise(ch_shape_of(0, 3, 4), 1)), ch_shape_of(0, 2, 6), NULL, 0);
    t_is(t_apply(flat, t_noise(ch_shape_of(2, 0, 4), 1)), ch_shape_of(2, 0), NULL, 0);
    t_is(t_apply(flat, t_f32(ch_shape_of(2), data)), ch_shape_of(2, 1), data, 0);
    t_refuses(shaped, t_noise(ch_shape_of(2, 3, 3), 1),
              "the sizes after axis 0 are (3, 3), which cannot become (2, ?)", "in reshape");
    ch_tensor_unref(x);
    ch_layer_unref(flat);
    ch_layer_unref(shaped);
    (void)state;
}

static void pool_layers_take_the_largest_or_the_mean_of_windows(void **state)
{
    static const float x[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    ch_layer          *max = ch_layer_max_pool(2, 2, 0, 0, CH_PAD_VALID);
    ch_layer          *same = ch_layer_max_pool(2, 2, 1, 3, CH_PAD_SAME);
    ch_layer          *mean = ch_layer_average_pool(3, 2, 0, 0, CH_PAD_VALID);
    ch_layer          *all = ch_layer_global_average_pool(), *top = ch_layer_global_max_pool();
    ch_shape           shape = ch_shape_of(1, 3, 4, 1);

    t_is(t_apply(max, t_f32(shape, x)), ch_shape_of(1, 1, 2, 1), (float[]){6, 8}, 0);
    t_is(t_apply(same, t_f32(shape, x)), ch_shape_of(1, 3, 2, 1),
         (float[]){6, 8, 10, 12, 10, 12}, 0);
    t_is(t_apply(mean, t_f32(shape, x)), ch_shape_of(1, 1, 2, 1), (float[]){5.5f, 7.5f}, 1e-6);
    t_is(t_apply(all, t_f32(shape, x)), ch_shape_of(1, 1), (float[]){6.5f}, 1e-6);
    t_is(t_apply(top, t_f32(ch_shape_of(2, 3, 2), x)), ch_shape_of(2, 2),
         (float[]){5, 6, 11, 12}, 0);
    t_is(t_apply(all, t_noise(ch_shape_of(0, 3, 4, 2), 1)), ch_shape_of(0, 2), NULL, 0);
    t_refuses(all, t_noise(ch_shape_of(3, 4), 1), "want at least 3 axes", "f32(?, 4)");
    ch_layer_unref(max);
    ch_layer_unref(same);
    ch_layer_unref(mean);
    ch_layer_unref(all);
    ch_layer_unref(top);
    (void)state;
}

static void dropout_drops_in_training_only(void **state)
{
    ch_layer  *l = ch_layer_dropout(0.25);
    ch_tensor *x = t_f32(ch_shape_of(100, 100), NULL);
    ch_tuple  *out = NULL;
    int        kept = 0;

    for (int i = 0; i < 10000; i++)
        ((float *)ch_tensor_data_mut(x))[i] = 3;
    t_is(t_apply(l, ch_tensor_ref(x)), ch_shape_of(100, 100), ch_tensor_data(x), 0);
    t_ok(t_try(NULL, &(t_call){.layer = l, .training = true}, 1, &x, &out));
    for (int i = 0; i < 10000; i++) {
        float y = t_floats(out, 0, 0)[i];

        assert_true(y == 0 || y == 4);
        kept += y != 0;
    }
    assert_in_range(kept, 7300, 7700);
    ch_tuple_unref(out);
    ch_layer_unref(l);
    (void)state;
}

/* ---- layers that a program defines ---- */

typedef struct scale_self {
    double  first;
    ch_var *by, *count;
    int    *dropped;
} scale_self;

static ch_status scale_build(ch_layer *l, void *self, int n, ch_node *const *in)
{
    scale_self *c = self;
    ch_init     init = ch_init_constant(c->first);
    ch_status   rc = ch_layer_weight(
          l, &(ch_layer_weight_spec){.name = "by", .shape = ch_shape_of(1), .init = &init},
          &c->by);

    (void)n, (void)in;
    if (rc == CH_OK)
        rc = ch_layer_weight(
            l, &(ch_layer_weight_spec){.name = "count", .trainable = CH_OFF, .f32 = true},
            &c->count);
    return rc;
}

static ch_node *scale_call(ch_layer *l, void *self, ch_step *s, int n, ch_node *const *in,
                           bool training)
{
    scale_self *c = self;

    (void)l, (void)n;
    if (training)
        ch_var_assign_add(s, c->count, ch_number(s, 1));
    return ch_mul(in[0], ch_var_read(s, c->by));
}

static void scale_drop(void *self)
{
    ++*((scale_self *)self)->dropped;
}

static const ch_layer_ops scale_ops = {
    .type = "scale", .build = scale_build, .call = scale_call, .drop = scale_drop};

static void layer_new_makes_a_layer_of_the_program(void **state)
{
    int            dropped = 0;
    scale_self     self = {.first = 3, .dropped = &dropped};
    ch_layer      *l = ch_layer_new(&scale_ops, &self, sizeof(self), 0, NULL);
    ch_tensor     *x = t_f32(ch_shape_of(2, 1), (float[]){1, 2});
    ch_var *const *v;

    ch_layer_set_dtype(l, CH_BF16);
    l = ch_layer_sequential("net", 1, &l);
    t_learns(NULL, l, 0.01, 1, &x);
    assert_int_equal(ch_layer_vars(l, &v), 2);
    assert_int_equal(ch_var_dtype(v[0]), CH_BF16);
    assert_int_equal(ch_var_dtype(v[1]), CH_F32);
    assert_int_equal(ch_layer_trainable(l, &v), 1);
    assert_true(t_copy_of(ch_layer_var(l, "scale/count"), 0, 0) == 10);
    t_refused(ch_layer_weight(l, &(ch_layer_weight_spec){.name = "late"}, NULL),
              CH_FAILED_PRECONDITION, "layer net", "build");
    ch_layer_unref(l);
    assert_int_equal(dropped, 1);
    (void)state;
}

static ch_status fail_without_a_word(ch_layer *l, void *self, int n, ch_node *const *in)
{
    (void)l, (void)self, (void)n, (void)in;
    return CH_INVALID_ARGUMENT;
}

static void layer_build_error_without_message_shows_no_earlier_message(void **state)
{
    ch_layer_ops ops = {
        .type = "silent", .build = fail_without_a_word, .call = scale_call, .drop = NULL};
    ch_layer *l = ch_layer_new(&ops, NULL, 0, 0, NULL);

    assert_null(ch_layer_dense(0, NULL)); /* an earlier error, "0 units", of another layer */
    t_refuses(l, t_noise(ch_shape_of(2, 3), 1), "silent", "");
    assert_null(strstr(ch_error_message(), "units"));
    ch_layer_unref(l);
    (void)state;
}

static ch_node *gives_nothing(ch_step *s, int n, ch_node *const *in, bool training,
                              ch_layer *const *layer, void *arg)
{
    (void)s, (void)n, (void)in, (void)training, (void)layer, (void)arg;
    return NULL;
}

static ch_node *adds_wrong(ch_step *s, int n, ch_node *const *in, bool training,
                           ch_layer *const *layer, void *arg)
{
    (void)n, (void)training, (void)layer, (void)arg;
    return ch_add(in[0], ch_fill(s, CH_F32, ch_shape_of(7), 0));
}

static void layer_function_error_names_its_layer_and_line(void **state)
{
    ch_layer *none = ch_layer_function("none", gives_nothing, NULL, 0, NULL);
    ch_layer *wrong = ch_layer_function("wrong", adds_wrong, NULL, 0, NULL);

    t_refuses(none, t_noise(ch_shape_of(2, 3), 1), "layer none: its `call` returned NULL",
              "in none");
    wrong = ch_layer_sequential("net", 1, &wrong);
    t_refuses(wrong, t_noise(ch_shape_of(2, 3), 1), "in net/wrong", "test_layer.c");
    ch_layer_unref(none);
    ch_layer_unref(wrong);
    (void)state;
}

/* ---- errors ---- */

static void not_made(ch_layer *l, const char *word)
{
    assert_null(l);
    if (strstr(ch_error_message(), word) == NULL)
        fail_msg("\"%s\" has no \"%s\"", ch_error_message(), word);
}

static void layer_constructors_reject_invalid_arguments(void **state)
{
    int64_t live = ch__mem_live();

    not_made(ch_layer_dense(0, NULL), "dense: 0 units");
    not_made(ch_layer_dense(1, &(ch_layer_dense_options){.activation = (ch_activation)99}),
             "99");
    not_made(ch_layer_dropout(1), "rate is 1");
    not_made(ch_layer_dropout(NAN), "rate is");
    not_made(ch_layer_activation((ch_activation)-1), "activation");
    not_made(ch_layer_max_pool(0, 2, 0, 0, CH_PAD_VALID), "0 x 2");
    not_made(ch_layer_average_pool(2, 2, -1, 0, CH_PAD_VALID), "-1");
    not_made(ch_layer_average_pool(2, 2, 0, 0, CH_PAD_EXPLICIT), "padding");
    not_made(ch_layer_reshape(ch_shape_of(-1, -1)), "one may be -1");
    not_made(ch_layer_reshape(ch_shape_of(-2)), "one may be -1");
    not_made(ch_layer_reshape(ch_shape_of(1, 1, 1, 1, 1, 1, 1, 1)), "at most 7");
    not_made(ch_layer_named("a/b", ch_layer_dense(1, NULL)), "\"a/b\"");
    not_made(ch_layer_named("", ch_layer_dense(1, NULL)), "without");
    not_made(ch_layer_named(NULL, ch_layer_dense(1, NULL)), "without");
    not_made(ch_layer_function("f", NULL, NULL, 1, (ch_layer *[]){ch_layer_dense(1, NULL)}),
             "NULL");
    not_made(ch_layer_new(NULL, NULL, 0, 0, NULL), "a call");
    /* The error of the innermost layer is returned, and nothing leaks. */
    not_made(ch_layer_sequential(
                 "net", 2, (ch_layer *[]){ch_layer_dense(3, NULL), ch_layer_dense(-4, NULL)}),
             "-4 units");
    not_made(ch_layer_sequential(
                 "net", 2, (ch_layer *[]){ch_layer_dense(-5, NULL), ch_layer_dense(3, NULL)}),
             "-5 units");
    assert_null(
        ch_layer_sequential("net", 1, (ch_layer *[]){NULL})); /* ch_model_new reports it ... */
    assert_int_equal(ch_model_new(NULL, NULL, NULL, &(ch_model *){NULL}), CH_INVALID_ARGUMENT);
    not_made(ch_layer_sequential("net", 2, (ch_layer *[]){ch_layer_dense(3, NULL), NULL}),
             "layer 1 of 2 is NULL"); /* ... and no later call does */
    assert_int_equal(ch__mem_live(), live);
    (void)state;
}

static void layer_call_rejects_invalid_arguments(void **state)
{
    ch_layer  *l = ch_layer_dense(1, NULL), *scalar = ch_layer_dense(1, NULL);
    ch_tuple  *out = NULL;
    ch_tensor *two[] = {t_noise(ch_shape_of(2, 3), 1), t_noise(ch_shape_of(2, 3), 1)};

    (void)ch_layer_dense(0, NULL);
    assert_int_not_equal(ch_layer_weight(l, NULL, NULL), CH_OK); /* another error in between */
    t_refuses(NULL, t_noise(ch_shape_of(2, 3), 1), "a layer to call", "0 units");
    t_refuses(NULL, t_noise(ch_shape_of(2, 3), 1), "a layer to call", "the layer is NULL");
    t_refused(t_try(NULL, &(t_call){.layer = l}, 2, two, &out), CH_INVALID_ARGUMENT,
              "called with 2 nodes, want 1", "in dense");
    t_refuses(scalar, t_f32(ch_shape_scalar(), NULL), "want at least 1 axis", "f32()");
    /* If a layer could not be made before another layer was used, its error is not reported for
     * the latter. */
    (void)ch_layer_dense(0, NULL);
    ch_tensor_unref(t_apply(l, t_noise(ch_shape_of(2, 3), 1)));
    t_refuses(NULL, t_noise(ch_shape_of(2, 3), 1), "a layer to call", "the layer is NULL");
    ch_layer_set_dtype(scalar, CH_I32);
    t_refuses(scalar, t_noise(ch_shape_of(2, 3), 1), "is i32", "in dense");
    ch_layer_unref(l);
    ch_layer_unref(scalar);
    (void)state;
}

/* Every allocation fails once: no crash and no leak; the next call works. */
static void layers_leak_nothing_when_out_of_memory(void **state)
{
    int64_t live = ch__mem_live();

    for (int64_t k = 1;; k++) {
        ch_layer *l;

        ch__mem_fail_at(k);
        l = two_blocks();
        ch__mem_fail_at(0);
        if (l != NULL) {
            ch_layer_unref(l);
            assert_true(k > 10);
            break;
        }
        assert_non_null(strstr(ch_error_message(), "out of memory"));
        assert_int_equal(ch__mem_live(), live);
    }
    assert_int_equal(ch__mem_live(), live);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_is_a_product_a_bias_and_an_activation),
        cmocka_unit_test(dense_takes_any_number_of_axes_before_the_last),
        cmocka_unit_test(dense_starts_from_glorots_uniform_and_zeros),
        cmocka_unit_test(layer_seed_changes_the_initial_values),
        cmocka_unit_test(layer_error_names_the_layer_and_both_widths),
        cmocka_unit_test(layer_variable_names_are_unique_paths),
        cmocka_unit_test(layer_names_of_siblings_are_numbered),
        cmocka_unit_test(a_layer_that_is_called_twice_shares_its_variables),
        cmocka_unit_test(layer_with_two_parents_is_listed_once),
        cmocka_unit_test(layer_names_are_unique_beside_shared_layers),
        cmocka_unit_test(layer_names_of_20000_siblings_are_found_quickly),
        cmocka_unit_test(layer_uses_the_same_variables_for_other_numbers_of_rows_and_axes),
        cmocka_unit_test(layer_variables_stay_equal_on_all_replicas),
        cmocka_unit_test(layer_set_dtype_sets_the_dtype_of_variables),
        cmocka_unit_test(activations_have_their_known_values),
        cmocka_unit_test(flatten_and_reshape_layers_keep_the_elements),
        cmocka_unit_test(pool_layers_take_the_largest_or_the_mean_of_windows),
        cmocka_unit_test(dropout_drops_in_training_only),
        cmocka_unit_test(layer_new_makes_a_layer_of_the_program),
        cmocka_unit_test(layer_build_error_without_message_shows_no_earlier_message),
        cmocka_unit_test(layer_function_error_names_its_layer_and_line),
        cmocka_unit_test(layer_constructors_reject_invalid_arguments),
        cmocka_unit_test(layer_call_rejects_invalid_arguments),
        cmocka_unit_test(layers_leak_nothing_when_out_of_memory),
    };

    if (ch_devices_configure(&(ch_devices_options){.spec = "CPU=2"}) != CH_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
