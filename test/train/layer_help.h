/* test/train/layer_help.h -- functions that call layers, set their variables and compare
 * results.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_TRAIN_LAYER_HELP_H
#define TEST_TRAIN_LAYER_HELP_H

#include <math.h>
#include <stdlib.h>

#include "../strategy/help.h"

typedef struct t_call {
    ch_layer *layer;
    bool      training;
    double    rate; /* of a gradient step that lowers the mean square; 0: no step */
} t_call;

/* Calls the layer with all inputs. The results are its output and the mean square of the
 * output. */
static inline void t_forward(ch_step *s, void *arg)
{
    t_call        *c = arg;
    ch_node       *in[8], *y, *loss, *value[64], *d[64];
    ch_var *const *v;
    int            n;

    for (int i = 0; i < ch_step_in_count(s); i++)
        in[i] = ch_step_in(s, i);
    y = ch_layer_call_n(c->layer, s, ch_step_in_count(s), in, c->training);
    ch_step_out(s, "y", y);
    if (y == NULL || !(c->rate > 0))
        return;
    loss = ch_mean_all(ch_square(ch_cast(y, CH_F32)));
    ch_step_out(s, "loss", loss);
    n = ch_layer_trainable(c->layer, &v);
    for (int i = 0; i < n && i < 64; i++)
        value[i] = ch_var_read(s, v[i]);
    ch_gradients(loss, NULL, n, value, d);
    for (int i = 0; i < n; i++)
        ch_var_assign_sub(s, v[i], ch_all_reduce(CH_MEAN, ch_mul(d[i], ch_number(s, c->rate))));
}

/* Runs the layer once under a strategy. Takes ownership of the inputs. */
static inline ch_status t_try(ch_strategy *st, t_call *c, int n, ch_tensor *const *in,
                              ch_tuple **out)
{
    ch_function *f = t_function(t_forward, c);
    ch_tuple    *batch = t_tuple(n, in);
    ch_status    rc = ch_strategy_run(st, f, batch, out);

    ch_tuple_unref(batch);
    ch_function_unref(f);
    return rc;
}

/* Returns the result of a call outside of training. */
static inline ch_tensor *t_apply_n(ch_layer *l, int n, ch_tensor *const *in)
{
    ch_tuple  *out = NULL;
    ch_tensor *y;

    t_ok(t_try(NULL, &(t_call){.layer = l}, n, in, &out));
    y = ch_tensor_ref(ch_value_at(ch_tuple_at(out, 0), 0));
    ch_tuple_unref(out);
    return y;
}

static inline ch_tensor *t_apply(ch_layer *l, ch_tensor *x)
{
    return t_apply_n(l, 1, &x);
}

/* Checks that calling the layer fails with these words in the message. */
static inline void t_refuses(ch_layer *l, ch_tensor *x, const char *word, const char *other)
{
    ch_tuple *out = NULL;

    t_refused(t_try(NULL, &(t_call){.layer = l}, 1, &x, &out), CH_INVALID_ARGUMENT, word,
              other);
    assert_null(out);
}

static inline void t_near(double have, double want, double off)
{
    if (!(fabs(have - want) <= off * (1 + fabs(want))))
        fail_msg("%.9g, want %.9g", have, want);
}

/* Compares the tensor with n numbers and releases it. */
static inline void t_is(ch_tensor *t, ch_shape shape, const float *want, double off)
{
    char have[96], wanted[96];

    ch_shape_print(ch_tensor_shape(t), have, sizeof(have));
    ch_shape_print(shape, wanted, sizeof(wanted));
    assert_string_equal(have, wanted);
    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        t_near(((const float *)ch_tensor_data(t))[i], want[i], off);
    ch_tensor_unref(t);
}

/* Sets a variable of a layer, given by its path, to noise of a seed, rounded to its dtype. */
static inline void t_fill(ch_layer *l, const char *path, unsigned seed)
{
    ch_var    *v = ch_layer_var(l, path);
    ch_tensor *noise, *value = NULL;

    if (v == NULL)
        fail_msg("there is no %s", path);
    noise = t_noise(ch_var_shape(v), seed);
    t_ok(ch_tensor_new(ch_var_dtype(v), ch_var_shape(v), &value));
    for (int64_t i = 0; i < ch_tensor_count(noise); i++) {
        int64_t  index[CH_MAX_RANK], rest = i;
        ch_shape shape = ch_var_shape(v);

        for (int k = shape.rank - 1; k >= 0; k--) {
            index[k] = rest % shape.dim[k];
            rest /= shape.dim[k];
        }
        t_ok(ch_tensor_set(value, index, ((const float *)ch_tensor_data(noise))[i]));
    }
    t_ok(ch_var_set(v, value));
    ch_tensor_unref(noise);
    ch_tensor_unref(value);
}

/* Returns a copy of a variable as floats. The caller must free() it. */
static inline float *t_values(ch_layer *l, const char *path)
{
    ch_var    *v = ch_layer_var(l, path);
    ch_tensor *t = NULL;
    float     *x;

    if (v == NULL)
        fail_msg("there is no %s", path);
    t_ok(ch_var_get(v, &t));
    x = malloc(ch_tensor_bytes(t) + 1);
    memcpy(x, ch_tensor_data(t), ch_tensor_bytes(t));
    ch_tensor_unref(t);
    return x;
}

/* Checks that ten small steps lower the loss, so that gradients reach the variables. */
static inline void t_learns(ch_strategy *st, ch_layer *l, double rate, int n,
                            ch_tensor *const *in)
{
    t_call       c = {.layer = l, .training = true, .rate = rate};
    ch_function *f = t_function(t_forward, &c);
    ch_tuple    *batch = t_tuple(n, in), *out = NULL;
    float        first = 0, last = 0;

    for (int i = 0; i < 10; i++) {
        t_ok(ch_strategy_run(st, f, batch, &out));
        last = t_floats(out, 1, 0)[0];
        first = i == 0 ? last : first;
        ch_tuple_unref(out);
    }
    if (!(last < 0.99 * first))
        fail_msg("the loss went from %g to %g", first, last);
    ch_tuple_unref(batch);
    ch_function_unref(f);
}

#endif
