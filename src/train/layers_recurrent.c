/* train/layers_recurrent.c -- LSTM and GRU layers.
 *
 * An iteration is recorded once, as the body of a scan over time. The part of the gates that
 * depends on the input only is a single product for all times, outside the scan. The scan has
 * the part that depends on the state.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cohort/control.h"
#include "cohort/math.h"
#include "strategy/strategy.h"
#include "train/layer.h"

typedef struct recurrent_self {
    int64_t units, width; /* width: size of the last axis of the input */
    bool    sequence;
    ch_var *kernel, *recurrent, *bias;
} recurrent_self;

/* ---- building ---- */

static ch_status add_weights(ch_layer *l, recurrent_self *r, ch_node *x, int gates,
                             ch_shape bias)
{
    ch_init   glorot = ch_init_glorot_uniform(), orthogonal = ch_init_orthogonal(1);
    int64_t   wide = gates * r->units;
    ch_status rc = ch__layer_size(l, x, -1, &r->width);

    if (rc == CH_OK)
        rc = ch_layer_weight(l,
                             &(ch_layer_weight_spec){.name = "kernel",
                                                     .shape = ch_shape_of(r->width, wide),
                                                     .init = &glorot},
                             &r->kernel);
    if (rc == CH_OK)
        rc = ch_layer_weight(l,
                             &(ch_layer_weight_spec){.name = "recurrent_kernel",
                                                     .shape = ch_shape_of(r->units, wide),
                                                     .init = &orthogonal},
                             &r->recurrent);
    if (rc == CH_OK)
        rc = ch_layer_weight(l, &(ch_layer_weight_spec){.name = "bias", .shape = bias},
                             &r->bias);
    return rc;
}

/* Sets the bias of the forget gate to 1, so that an LSTM forgets little at first. */
static ch_status open_forget_gate(ch_var *bias, int64_t units)
{
    ch_tensor *t = NULL;
    ch_status  rc = ch__var_get(bias, &t);

    for (int64_t i = units; i < 2 * units && rc == CH_OK; i++)
        rc = ch_tensor_set(t, &i, 1);
    if (rc == CH_OK)
        rc = ch__var_set(bias, t);
    ch_tensor_unref(t);
    return rc;
}

static ch_status lstm_build(ch_layer *l, void *self, int n, ch_node *const *in)
{
    recurrent_self *r = self;
    ch_status       rc = add_weights(l, r, in[0], 4, ch_shape_of(4 * r->units));

    (void)n;
    return rc == CH_OK ? open_forget_gate(r->bias, r->units) : rc;
}

static ch_status gru_build(ch_layer *l, void *self, int n, ch_node *const *in)
{
    recurrent_self *r = self;

    (void)n;
    return add_weights(l, r, in[0], 3, ch_shape_of(2, 3 * r->units));
}

/* ---- an iteration ---- */

typedef struct cell {
    ch_node *recurrent, *bias; /* nodes of the step around the scan; bias NULL: none */
    bool     sequence;
} cell;

/* Records an iteration of an LSTM. carry: h and c (N, units). x: the part of the gates that
 * depends on the input, including the bias (N, 4 units). */
static void lstm_cell(ch_step *s, void *arg, ch_node *const *carry, ch_node *const *x,
                      ch_node **next, ch_node **y)
{
    const cell *k = arg;
    ch_node    *gate[4];

    (void)s;
    ch_split(ch_add(x[0], ch_matmul(carry[0], false, k->recurrent, false)), -1, 4, NULL, gate);
    next[1] = ch_add(ch_mul(ch_sigmoid(gate[1]), carry[1]),
                     ch_mul(ch_sigmoid(gate[0]), ch_tanh(gate[2])));
    next[0] = ch_mul(ch_sigmoid(gate[3]), ch_tanh(next[1]));
    if (k->sequence)
        y[0] = next[0];
}

/* Records an iteration of a GRU. carry: h. x: (N, 3 units). The reset gate is applied after the
 * product, so h has a bias of its own. */
static void gru_cell(ch_step *s, void *arg, ch_node *const *carry, ch_node *const *x,
                     ch_node **next, ch_node **y)
{
    const cell *k = arg;
    ch_node    *in[3], *of_h[3], *z, *r, *h = carry[0], *now;

    (void)s;
    ch_split(x[0], -1, 3, NULL, in);
    ch_split(ch_linear(h, k->recurrent, k->bias), -1, 3, NULL, of_h);
    z = ch_sigmoid(ch_add(in[0], of_h[0]));
    r = ch_sigmoid(ch_add(in[1], of_h[1]));
    now = ch_tanh(ch_add(in[2], ch_mul(r, of_h[2])));
    next[0] = ch_add(now, ch_mul(z, ch_sub(h, now))); /* z h + (1 - z) now */
    if (k->sequence)
        y[0] = next[0];
}

/* ---- calling ---- */

/* Returns the initial state, zeros of (N, units), for gates of (N, T, ...). */
static ch_node *first_state(const recurrent_self *r, ch_node *gates)
{
    /* Only its shape is used; the planner drops it. */
    ch_node *like = ch_sum(gates, 1, (int[]){1}, false);

    return ch_zeros_like(ch_slice(like, 2, (int64_t[]){0, 0}, (int64_t[]){-1, r->units}));
}

/* Scans over axis 1 of the gates (N, T, ...). Returns all outputs if r->sequence, otherwise the
 * last h. */
static ch_node *scan(const recurrent_self *r, ch_step *s, ch_node *gates, int n_carry,
                     ch_scan_fn fn, cell *k)
{
    ch_node *zero = first_state(r, gates), *carry[2] = {zero, zero}, *last[2], *y = NULL;
    ch_node *by_time = ch_transpose(gates, 3, (int[]){1, 0, 2});

    if (zero == NULL || by_time == NULL)
        return NULL;
    last[0] = NULL;
    ch_scan(s, &(ch_scan_spec){.n_carry = n_carry, .n_x = 1, .n_y = r->sequence}, fn, k, carry,
            &by_time, last, &y);
    return r->sequence ? ch_transpose(y, 3, (int[]){1, 0, 2}) : last[0];
}

static ch_node *lstm_call(ch_layer *l, void *self, ch_step *s, int n, ch_node *const *in,
                          bool training)
{
    recurrent_self *r = self;
    cell            k = {.sequence = r->sequence};
    ch_node        *gates;

    (void)n, (void)training;
    if (!ch__layer_check_width(l, s, in[0], r->width))
        return NULL;
    k.recurrent = ch_var_read(s, r->recurrent);
    gates = ch_linear(in[0], ch_var_read(s, r->kernel), ch_var_read(s, r->bias));
    return scan(r, s, gates, 2, lstm_cell, &k);
}

static ch_node *gru_call(ch_layer *l, void *self, ch_step *s, int n, ch_node *const *in,
                         bool training)
{
    recurrent_self *r = self;
    cell            k = {.sequence = r->sequence};
    ch_node        *bias[2], *gates;

    (void)n, (void)training;
    if (!ch__layer_check_width(l, s, in[0], r->width))
        return NULL;
    k.recurrent = ch_var_read(s, r->recurrent);
    ch_split(ch_var_read(s, r->bias), 0, 2, NULL, bias);
    k.bias = ch_reshape(bias[1], ch_shape_of(3 * r->units));
    gates = ch_linear(in[0], ch_var_read(s, r->kernel),
                      ch_reshape(bias[0], ch_shape_of(3 * r->units)));
    return scan(r, s, gates, 1, gru_cell, &k);
}

static const ch_layer_ops lstm_ops = {
    .type = "lstm", .build = lstm_build, .call = lstm_call, .n_in = {1, 1}, .rank = {{3, 3}}};
static const ch_layer_ops gru_ops = {
    .type = "gru", .build = gru_build, .call = gru_call, .n_in = {1, 1}, .rank = {{3, 3}}};

static ch_layer *new_recurrent(const ch_layer_ops *ops, int64_t units,
                               const ch_layer_recurrent_options *opt)
{
    recurrent_self r = {.units = units, .sequence = opt != NULL && opt->return_sequence};

    if (units < 1)
        return ch__layer_fail("%s: %lld units, want at least 1", ops->type, (long long)units);
    return ch__layer_new(ops, &r, sizeof(r), 0, NULL);
}

ch_layer *ch_layer_lstm(int64_t units, const ch_layer_recurrent_options *opt)
{
    return new_recurrent(&lstm_ops, units, opt);
}

ch_layer *ch_layer_gru(int64_t units, const ch_layer_recurrent_options *opt)
{
    return new_recurrent(&gru_ops, units, opt);
}
