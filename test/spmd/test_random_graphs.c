/* test/spmd/test_random_graphs.c -- random steps train on several logical devices as on one.
 *
 * A seed gives a step: variables with random splits, about 20 calls on values that calls
 * before have made, some of them with bodies, and random annotations of a third of the values.
 * The step reads a batch, computes a loss, and updates the variables by their gradients. It
 * runs twice on one device, and twice on a random number of cores over a random mesh, of one
 * replica or two. The results and the variables must be equal up to rounding, and the bytes
 * that the kernels moved must be the planned bytes.
 *
 * Only a run knows how often the body of a while runs, and which branch of a cond. Half of the
 * steps have neither. Most others have a single one, and a result that counts its iterations or
 * names its branch, so that the bytes can be compared too. A few have any number; their bytes
 * are not compared.
 *
 * The step is recorded anew for each strategy, from the same seed, so the generator may look at
 * shapes only. Values that ops compare are spread by random numbers first: a tie that rounding
 * breaks would change results.
 *
 * T_SEEDS is the number of steps, T_FIRST_SEED the first seed. T_MUTANT leaves out a check of
 * the library (mutant.h).
 * SPDX-License-Identifier: Apache-2.0 */
#include "../strategy/cores.h"

#include <math.h>
#include <unistd.h>

#include "../mutant.h"
#include "base/config.h"
#include "graph/function.h"
#include "spmd/core_ops.h"

enum {
    CALLS = 20,
    MOST_VALUES = 80,
    MOST_VARS = 4,
    MOST_OUT = 5,
    STEPS = 2,
    MOST_ELEMENTS = 12000,
    MOST_SECONDS = 100 /* for a step; longer is a deadlock */
};

/* ---- the generator ---- */

typedef struct random_step {
    unsigned seed;
    int      n_replicas, n_cores, mesh[3]; /* ended by 0 */
    int      n_mesh;
    int64_t  rows, width, depth; /* of the batch of each replica */
    int      n_vars;
    ch_shape shape[MOST_VARS];
    int      split[MOST_VARS][CH_MAX_RANK];
    /* of a strategy */
    ch_optimizer *o;
    ch_var       *var[MOST_VARS];
    /* while the step is recorded */
    unsigned state;
    ch_step *s;
    int      n_values;
    ch_node *value[MOST_VALUES], *ids;
    /* calls of cond and while: only a run knows how often their bodies run */
    int      n_conditional, most_conditional;
    ch_node *n_runs; /* of the body of such a while; 1 or 0: the first branch of a cond runs */
} random_step;

/* Returns a random number in [0, n). */
static int any(unsigned *state, int n)
{
    unsigned x = *state += 0x9e3779b9u;

    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return (int)((x ^ (x >> 16)) % (unsigned)n);
}

static bool one_in(random_step *r, int n)
{
    return any(&r->state, n) == 0;
}

static int rank_of(const ch_node *x)
{
    return x->dims.rank;
}

static int64_t size_of(const ch_node *x, int axis)
{
    return x->dims.dim[axis].n;
}

static ch_node *scaled(random_step *r, ch_node *x)
{
    return ch_mul(x, ch_number(r->s, 0.3));
}

/* Keeps numbers small: by a product, which keeps partial sums, or a function. */
static ch_node *tamed(random_step *r, ch_node *x)
{
    return one_in(r, 2) ? scaled(r, x) : ch_tanh(x);
}

/* Returns x with random numbers added, so that no two elements are nearly equal. */
static ch_node *spread(random_step *r, ch_node *x)
{
    return ch_add(ch_tanh(x), ch_random_uniform_like(x, -3, 3, (uint64_t)any(&r->state, 999)));
}

static ch_node *pick(random_step *r)
{
    /* rather a new value than an old one */
    int back = any(&r->state, 3) == 0 ? any(&r->state, r->n_values)
                                      : any(&r->state, r->n_values < 6 ? r->n_values : 6);

    return r->value[r->n_values - 1 - back];
}

/* Returns a value of at least this rank, or NULL. */
static ch_node *pick_of_rank(random_step *r, int rank)
{
    ch_node *x = NULL;

    for (int i = 0; i < 8 && (x == NULL || rank_of(x) < rank); i++)
        x = pick(r);
    return rank_of(x) >= rank ? x : NULL;
}

static int pick_axis(random_step *r, const ch_node *x)
{
    return any(&r->state, rank_of(x));
}

/* Annotates some values in a random way. */
static ch_node *annotated(random_step *r, ch_node *x)
{
    int at[CH_MAX_RANK], parts[CH_MAX_RANK], product = 1;

    if (!one_in(r, 3))
        return x;
    switch (any(&r->state, 6)) {
    case 0:
        return ch_replicate_to_logical_devices(x);
    case 1:
        return ch_assign_to_logical_device(x, any(&r->state, r->n_cores));
    case 2: /* in parts, if the sizes divide */
        for (int k = 0; k < rank_of(x); k++) {
            int left = r->n_cores / product;

            parts[k] = 1;
            for (int p = 2; p <= left && one_in(r, 2) == false; p++)
                if (left % p == 0 && size_of(x, k) % p == 0)
                    parts[k] = p;
            product *= parts[k];
        }
        return product == r->n_cores ? ch_split_to_logical_devices(x, rank_of(x), parts) : x;
    default:
        for (int k = 0; k < rank_of(x); k++)
            at[k] = CH_OFF;
        if (rank_of(x) > 0 && one_in(r, 4))
            at[pick_axis(r, x)] = CH_MESH_ALL;
        else
            for (int m = 0; m < r->n_mesh && rank_of(x) > 0; m++) {
                int k = pick_axis(r, x);

                at[k] = at[k] == CH_OFF && !one_in(r, 4) ? m : at[k];
            }
        return ch_mesh_split(x, rank_of(x), at);
    }
}

/* ---- calls: each returns NULL if the values do not suit ---- */

static ch_node *make_unary(random_step *r)
{
    ch_node *x = pick(r);

    switch (any(&r->state, 8)) {
    case 0:
        return ch_tanh(x);
    case 1:
        return ch_neg(x);
    case 2:
        return ch_gelu(x);
    case 3:
        return ch_sigmoid(x);
    case 4:
        return ch_square(ch_tanh(x));
    case 5:
        return ch_exp(ch_tanh(x));
    case 6:
        return scaled(r, x);
    default:
        return ch_relu(spread(r, x));
    }
}

/* Returns true if two shapes broadcast to one that is not too large. */
static bool broadcast(const ch_node *a, const ch_node *b)
{
    int     rank = rank_of(a) > rank_of(b) ? rank_of(a) : rank_of(b);
    int64_t count = 1;

    for (int k = 1; k <= rank; k++) {
        int64_t x = k <= rank_of(a) ? size_of(a, rank_of(a) - k) : 1;
        int64_t y = k <= rank_of(b) ? size_of(b, rank_of(b) - k) : 1;

        if (x != y && x != 1 && y != 1)
            return false;
        count *= x > y ? x : y;
    }
    return count <= MOST_ELEMENTS;
}

static ch_node *make_binary(random_step *r)
{
    ch_node *a = pick(r), *b = NULL;

    for (int i = 0; i < 10 && b == NULL; i++) {
        b = pick(r);
        if (!broadcast(a, b))
            b = NULL;
    }
    if (b == NULL)
        return NULL;
    switch (any(&r->state, 5)) {
    case 0:
        return ch_sub(a, b);
    case 1:
        return ch_mul(ch_tanh(a), b);
    case 2:
        return ch_maximum(spread(r, a), spread(r, b));
    case 3:
        return ch_select(ch_less(spread(r, a), spread(r, b)), a, b);
    default:
        return ch_add(a, b);
    }
}

static ch_node *make_matmul(random_step *r)
{
    ch_node *a = pick_of_rank(r, 2);

    for (int i = 0; i < 12 && a != NULL; i++) {
        ch_node *b = pick(r);
        bool     ta = one_in(r, 3), tb = one_in(r, 3);

        if (rank_of(b) != 2 || size_of(b, tb) != size_of(a, rank_of(a) - (ta ? 2 : 1)))
            continue;
        return tamed(r, ch_matmul(a, ta, b, tb));
    }
    return NULL;
}

static ch_node *make_products(random_step *r)
{
    ch_node *a = pick_of_rank(r, 2);

    return a != NULL && rank_of(a) <= 4 ? tamed(r, ch_matmul(a, true, a, false)) : NULL;
}

static ch_node *make_transpose(random_step *r)
{
    ch_node *x = pick_of_rank(r, 2);
    int      perm[CH_MAX_RANK];

    for (int k = 0; x != NULL && k < rank_of(x); k++) {
        int at = any(&r->state, k + 1);

        perm[k] = perm[at];
        perm[at] = k;
    }
    return x != NULL ? ch_transpose(x, rank_of(x), perm) : NULL;
}

/* Merges two axes, or cuts one in two. */
static ch_node *make_reshape(random_step *r)
{
    ch_node *x = pick_of_rank(r, 1);
    ch_shape to = {0};
    int      axis;

    if (x == NULL || rank_of(x) > 5)
        return NULL;
    axis = pick_axis(r, x);
    for (int k = 0; k < rank_of(x); k++) {
        int64_t n = size_of(x, k);

        if (k == axis && k + 1 < rank_of(x) && one_in(r, 2)) {
            to.dim[to.rank++] = n * size_of(x, ++k);
            continue;
        }
        for (int64_t p = 4; p >= 2 && k == axis; p--)
            if (n > p && n % p == 0) {
                to.dim[to.rank++] = p;
                n /= p;
                break;
            }
        to.dim[to.rank++] = n;
    }
    return ch_reshape(x, to);
}

static ch_node *make_reduction(random_step *r)
{
    ch_node *x = pick_of_rank(r, 1);
    int      axis[CH_MAX_RANK], n = 0;
    bool     keep = one_in(r, 2);

    for (int k = 0; x != NULL && k < rank_of(x); k++)
        if (one_in(r, 2))
            axis[n++] = k;
    if (n == 0)
        return NULL;
    switch (any(&r->state, 6)) {
    case 0:
        return ch_max(spread(r, x), n, axis, keep);
    case 1:
        return ch_min(spread(r, x), n, axis, keep);
    case 2:
        return ch_mean(x, n, axis, keep);
    case 3:
        return tamed(r, ch_logsumexp(x, n, axis, keep));
    case 4:
        return ch_prod(ch_add(ch_mul(ch_tanh(x), ch_number(r->s, 0.1)), ch_number(r->s, 1)), n,
                       axis, keep);
    default:
        return tamed(r, ch_sum(x, n, axis, keep));
    }
}

static ch_node *make_softmax(random_step *r)
{
    ch_node *x = pick_of_rank(r, 1);

    if (x == NULL)
        return NULL;
    return one_in(r, 2) ? ch_softmax(x, pick_axis(r, x))
                        : scaled(r, ch_log_softmax(x, pick_axis(r, x)));
}

/* Returns a value of one axis of this size, or NULL. */
static ch_node *pick_vector(random_step *r, int64_t size)
{
    for (int i = 0; i < r->n_values; i++)
        if (rank_of(r->value[i]) == 1 && size_of(r->value[i], 0) == size)
            return r->value[i];
    return NULL;
}

static ch_node *make_norm(random_step *r)
{
    ch_node *x = pick_of_rank(r, 2), *mean, *variance, *gamma, *beta;
    int64_t  n = x != NULL ? size_of(x, rank_of(x) - 1) : 0;

    if (x == NULL || n < 2)
        return NULL;
    gamma = pick_vector(r, n);
    if (gamma == NULL)
        gamma = ch_fill(r->s, CH_F64, ch_shape_of(n), 0.7);
    beta = ch_fill(r->s, CH_F64, ch_shape_of(n), 0.1);
    x = spread(r, x);
    switch (any(&r->state, 3)) {
    case 0:
        return ch_batch_norm(x, gamma, beta, 0.1, &mean, &variance);
    case 1:
        return ch_rms_norm(x, gamma, 0.1);
    default:
        return ch_layer_norm(x, gamma, beta, 0.1);
    }
}

static ch_node *make_concat(random_step *r)
{
    ch_node *a = pick_of_rank(r, 1), *b = NULL;
    int      axis;

    if (a == NULL)
        return NULL;
    axis = pick_axis(r, a);
    for (int i = 0; i < 10; i++) {
        bool fits;

        b = pick(r);
        fits = rank_of(a) == rank_of(b) && ch__count(a) + ch__count(b) < MOST_ELEMENTS;
        for (int k = 0; fits && k < rank_of(a); k++)
            fits = k == axis || size_of(a, k) == size_of(b, k);
        if (fits)
            return ch_concat(3, (ch_node *[]){a, b, a}, axis);
    }
    return ch_concat(2, (ch_node *[]){a, ch_tanh(a)}, axis);
}

static ch_node *make_slice(random_step *r)
{
    ch_node *x = pick_of_rank(r, 1);
    int64_t  begin[CH_MAX_RANK], end[CH_MAX_RANK], step[CH_MAX_RANK];

    for (int k = 0; x != NULL && k < rank_of(x); k++) {
        int64_t n = size_of(x, k);

        begin[k] = one_in(r, 2) && n > 1 ? any(&r->state, (int)n - 1) : 0;
        end[k] = one_in(r, 2) ? begin[k] + 1 + any(&r->state, (int)(n - begin[k])) : n;
        step[k] = one_in(r, 3) ? 2 : 1;
    }
    return x != NULL ? ch_strided_slice(x, rank_of(x), begin, end, step) : NULL;
}

static ch_node *make_pad(random_step *r)
{
    ch_node *x = pick_of_rank(r, 1);
    int64_t  before[CH_MAX_RANK], after[CH_MAX_RANK];

    if (x == NULL || ch__count(x) > MOST_ELEMENTS / 8)
        return NULL;
    for (int k = 0; k < rank_of(x); k++) {
        before[k] = any(&r->state, 2);
        after[k] = any(&r->state, 2);
    }
    return ch_pad(x, rank_of(x), before, after, 0.5);
}

static ch_node *make_reverse(random_step *r)
{
    ch_node *x = pick_of_rank(r, 1);
    int      axis = x != NULL ? pick_axis(r, x) : 0;

    return x != NULL ? ch_reverse(x, 1, &axis) : NULL;
}

static ch_node *make_tile(random_step *r)
{
    ch_node *x = pick_of_rank(r, 1);
    int64_t  times[CH_MAX_RANK];

    if (x == NULL || ch__count(x) > MOST_ELEMENTS / 4)
        return NULL;
    for (int k = 0; k < rank_of(x); k++)
        times[k] = 1;
    times[pick_axis(r, x)] = 2;
    return ch_tile(x, rank_of(x), times);
}

static ch_node *make_broadcast(random_step *r)
{
    ch_node *x = pick(r);
    ch_shape to = {0};

    if (rank_of(x) > 3 || ch__count(x) > MOST_ELEMENTS / 4)
        return NULL;
    to.dim[to.rank++] = 1 + any(&r->state, 4);
    for (int k = 0; k < rank_of(x); k++)
        to.dim[to.rank++] = size_of(x, k);
    return ch_broadcast_to(x, to);
}

/* Returns ids in [0, n) from those of the batch. */
static ch_node *ids_below(random_step *r, int64_t n)
{
    return ch_mod(r->ids, ch_fill(r->s, CH_I64, (ch_shape){0}, (double)n));
}

static ch_node *make_gather(random_step *r)
{
    ch_node *x = pick_of_rank(r, 1);
    int      axis = x != NULL ? pick_axis(r, x) : 0;

    if (x == NULL || size_of(x, axis) == 0 || ch__count(x) > MOST_ELEMENTS / 8)
        return NULL;
    return ch_gather(x, ids_below(r, size_of(x, axis)), axis);
}

static ch_node *make_scatter(random_step *r)
{
    ch_node *x = pick_of_rank(r, 1);

    if (x == NULL || size_of(x, 0) == 0 || ch__count(x) > MOST_ELEMENTS / 8)
        return NULL;
    return ch_scatter_add(x, ids_below(r, size_of(x, 0)),
                          ch_gather(ch_tanh(x), ids_below(r, size_of(x, 0)), 0));
}

static ch_node *make_segments(random_step *r)
{
    ch_node *x = ch_gather(ch_one_hot(ids_below(r, 5), 5, 1, 0.25, CH_F64),
                           ids_below(r, size_of(r->ids, 0)), 0);

    return ch_segment_sum(scaled(r, x), ids_below(r, 4), 4);
}

static ch_node *make_ordered(random_step *r)
{
    ch_node *x = pick_of_rank(r, 1), *values, *indices;
    int      axis = x != NULL ? pick_axis(r, x) : 0;

    if (x == NULL || size_of(x, axis) == 0)
        return NULL;
    switch (any(&r->state, 5)) {
    case 0:
        return ch_sort(spread(r, x), axis, one_in(r, 2));
    case 1:
        return tamed(r, ch_cumsum(x, axis, one_in(r, 2), one_in(r, 2)));
    case 2:
        return scaled(r, ch_cast(ch_argmax(spread(r, x), axis), CH_F64));
    case 3:
        return scaled(r, ch_cast(ch_argmin(spread(r, x), axis), CH_F64));
    default:
        if (size_of(x, rank_of(x) - 1) < 2)
            return NULL;
        ch_top_k(spread(r, x), 2, &values, &indices);
        return ch_add(values, scaled(r, ch_cast(indices, CH_F64)));
    }
}

static ch_node *make_random(random_step *r)
{
    ch_node *x = pick(r);
    uint64_t seed = (uint64_t)any(&r->state, 1000);

    return one_in(r, 2) ? ch_dropout(x, 0.25, seed)
                        : ch_add(x, ch_random_normal_like(x, 0, 0.2, seed));
}

/* An image (1, rows, columns, channels) of a value, if it is long enough. */
static ch_node *make_image(random_step *r)
{
    ch_node *x = pick_of_rank(r, 2), *filter;
    ch_shape to = {.rank = 4};
    int64_t  channels;

    if (x == NULL || ch__count(x) > MOST_ELEMENTS / 8)
        return NULL;
    channels = size_of(x, rank_of(x) - 1);
    if (channels > 6 || ch__count(x) == 0)
        return NULL;
    to.dim[0] = 1;
    to.dim[1] = size_of(x, 0);
    to.dim[2] = ch__count(x) / channels / size_of(x, 0);
    to.dim[3] = channels;
    x = ch_reshape(x, to);
    if (one_in(r, 3))
        return one_in(r, 2)
                   ? ch_max_pool2d(spread(r, x), &(ch_pool_options){.window = {2, 2},
                                                                    .stride = {1, 2},
                                                                    .padding = CH_PAD_SAME})
                   : ch_avg_pool2d(x, &(ch_pool_options){.window = {3, 2},
                                                         .stride = {2, 1},
                                                         .padding = CH_PAD_SAME});
    filter = ch_random_uniform(r->s, CH_F64, ch_shape_of(3, 2, channels, 3), -0.5, 0.5, 7);
    filter = ch_tanh(ch_add(filter, ch_mean_all(pick(r))));
    return ch_tanh(ch_conv2d(
        annotated(r, x), annotated(r, filter),
        &(ch_conv_options){.padding = CH_PAD_SAME, .stride = {1 + any(&r->state, 2), 1}}));
}

static ch_node *make_attention(random_step *r)
{
    ch_node *x = pick_of_rank(r, 2), *q, *k;
    int64_t  width = x != NULL ? size_of(x, rank_of(x) - 1) : 0;

    if (x == NULL || ch__count(x) > 2000 || width < 2 || width > 40)
        return NULL;
    x = ch_reshape(x, ch_shape_of(1, 1, -1, width));
    if (width % 2 == 0)
        x = ch_transpose(ch_reshape(x, ch_shape_of(1, -1, 2, width / 2)), 4,
                         (int[]){0, 2, 1, 3});
    q = annotated(r, ch_tanh(x));
    k = annotated(r, x);
    return ch_attention(q, k, x, NULL,
                        &(ch_attention_options){.causal = one_in(r, 2), .scale = 0.5});
}

/* ---- bodies ---- */

typedef struct body {
    random_step *r;
    ch_node     *x, *w;
} body;

static void grow(ch_step *s, void *arg, ch_node **out)
{
    const body *b = arg;

    (void)s;
    out[0] = ch_tanh(ch_add(b->x, b->w));
}

static void shrink(ch_step *s, void *arg, ch_node **out)
{
    const body *b = arg;

    (void)s;
    out[0] = ch_mul(ch_softmax(b->x, -1), b->w);
}

static ch_node *make_cond(random_step *r)
{
    ch_node *x = pick_of_rank(r, 1), *is_negative, *out = NULL;
    body     b = {r, x, NULL};

    if (x == NULL || r->n_conditional == r->most_conditional)
        return NULL;
    r->n_conditional++;
    b.w = ch_mean_all(pick(r));
    is_negative = ch_less(ch_sum_all(spread(r, x)), ch_number(r->s, 0));
    ch_cond(is_negative, 1, grow, shrink, &b, &out);
    r->n_runs = ch_cast(is_negative, CH_F64);
    return out;
}

static void recur(ch_step *s, void *arg, ch_node *const *carry, ch_node *const *x,
                  ch_node **next, ch_node **y)
{
    const body *b = arg;

    (void)s;
    next[0] = ch_tanh(ch_add(x[0], ch_add(carry[0], b->w)));
    y[0] = ch_mul(next[0], ch_sigmoid(x[0]));
}

static ch_node *make_scan(random_step *r)
{
    ch_node     *x = pick_of_rank(r, 2), *h, *last = NULL, *y = NULL;
    body         b = {r, NULL, NULL};
    ch_scan_spec spec = {.n_carry = 1, .n_x = 1, .n_y = 1, .reverse = one_in(r, 2)};

    if (x == NULL || size_of(x, 0) < 2)
        return NULL;
    b.w = ch_mean_all(pick(r));
    h = ch_mean(x, 1, (int[]){0}, false);
    ch_scan(r->s, &spec, recur, &b, &h, &x, &last, &y);
    return one_in(r, 3) ? last : y;
}

static ch_node *is_below(ch_step *s, void *arg, ch_node *const *state)
{
    (void)arg;
    return ch_less(state[0], ch_number(s, 3));
}

static void repeat(ch_step *s, void *arg, ch_node *const *state, ch_node **next)
{
    const body *b = arg;

    next[0] = ch_add(state[0], ch_number(s, 1));
    next[1] = ch_tanh(ch_add(ch_mul(state[1], ch_number(s, 1.3)), b->w));
}

static ch_node *make_while(random_step *r)
{
    ch_node *x = pick(r), *state[2], *last[2] = {NULL, NULL};
    body     b = {r, NULL, ch_mean_all(pick(r))};

    if (r->n_conditional == r->most_conditional)
        return NULL;
    r->n_conditional++;
    state[0] = ch_mul(ch_mean_all(spread(r, x)), ch_number(r->s, 0.1));
    state[1] = x;
    ch_while(r->s, 2, 6, is_below, repeat, &b, state, last);
    r->n_runs = ch_sub(last[0], state[0]);
    return last[1];
}

typedef ch_node *(*make_fn)(random_step *r);
static const make_fn makers[] = {make_unary,     make_unary,     make_binary,    make_binary,
                                 make_binary,    make_matmul,    make_matmul,    make_matmul,
                                 make_products,  make_reduction, make_reduction, make_reduction,
                                 make_transpose, make_reshape,   make_reshape,   make_softmax,
                                 make_norm,      make_norm,      make_concat,    make_slice,
                                 make_pad,       make_reverse,   make_tile,      make_broadcast,
                                 make_gather,    make_scatter,   make_segments,  make_ordered,
                                 make_ordered,   make_random,    make_random,    make_image,
                                 make_attention, make_cond,      make_scan,      make_while};

static void add_value(random_step *r, ch_node *x)
{
    r->value[r->n_values++] = annotated(r, x);
}

static void record(ch_step *s, void *arg)
{
    random_step *r = arg;
    ch_node     *loss = NULL;
    int          first;

    r->s = s;
    r->state = r->seed;
    r->n_values = 0;
    r->n_conditional = 0;
    r->n_runs = NULL;
    add_value(r, ch_step_in(s, 0));
    r->ids = annotated(r, ch_step_in(s, 1));
    for (int i = 0; i < r->n_vars; i++)
        add_value(r, ch_var_read(s, r->var[i]));
    for (int i = 0; i < CALLS;) {
        make_fn  make = makers[any(&r->state, (int)(sizeof(makers) / sizeof(makers[0])))];
        ch_node *x = make(r);

        if (ch_step_status(s) != CH_OK)
            return;
        if (x == NULL || ch__count(x) > MOST_ELEMENTS)
            continue;
        add_value(r, x);
        i++;
    }
    first = r->n_values - 6;
    for (int i = 0; i < r->n_values; i++) {
        ch_node *part =
            i >= first || i >= 2 ? ch_mean_all(ch_square(ch_tanh(r->value[i]))) : NULL;

        if (part != NULL && ch__count(r->value[i]) > 0)
            loss = loss == NULL ? part : ch_add(loss, part);
    }
    for (int i = 0; i < 3; i++)
        ch_step_out(s, NULL, pick(r));
    ch_step_out(s, NULL, loss);
    if (r->n_runs != NULL)
        ch_step_out(s, NULL, r->n_runs);
    ch_optimizer_minimize(r->o, s, loss, r->n_vars, r->var);
}

/* Chooses everything but the calls. */
static void choose(random_step *r, unsigned seed)
{
    static const int meshes[][3] = {{2, 0},    {3, 0},    {4, 0},    {6, 0},
                                    {8, 0},    {2, 2},    {2, 3, 0}, {3, 2, 0},
                                    {4, 2, 0}, {2, 4, 0}, {4, 1, 0}, {5, 0}};
    unsigned         state = seed * 2654435761u;
    int              mesh = any(&state, 12);

    *r = (random_step){.seed = state,
                       .most_conditional = seed % 2 == 0   ? 0
                                           : seed % 8 == 7 ? CALLS
                                                           : 1,
                       .n_replicas = any(&state, 5) == 0 ? 2 : 1};
    r->n_cores = 1;
    for (int i = 0; i < 2 && meshes[mesh][i] > 0; i++) {
        r->mesh[r->n_mesh++] = meshes[mesh][i];
        r->n_cores *= meshes[mesh][i];
    }
    if (r->n_replicas * r->n_cores > T_MOST_DEVICES)
        r->n_replicas = 1;
    r->rows = 1 + any(&state, 9);
    r->width = 1 + any(&state, 8);
    r->depth =
        any(&state, 6) == 0 ? 24 : 1 + any(&state, 6); /* some arrays do not fit a slot */
    r->n_vars = 2 + any(&state, MOST_VARS - 1);
    for (int i = 0; i < r->n_vars; i++) {
        const int64_t sizes[] = {r->depth, r->width, 4, 6, r->depth};
        ch_shape     *to = &r->shape[i];

        to->rank = i == 0 ? 2 : 1 + any(&state, 3);
        for (int k = 0; k < to->rank; k++) {
            to->dim[k] = sizes[(i + k + any(&state, 3)) % 5];
            r->split[i][k] = CH_OFF;
        }
        if (any(&state, 3) == 0)
            r->split[i][any(&state, to->rank)] = CH_MESH_ALL;
        else
            for (int m = 0; m < r->n_mesh; m++) {
                int k = any(&state, to->rank);

                if (r->split[i][k] == CH_OFF && any(&state, 3) > 0)
                    r->split[i][k] = m;
            }
    }
}

/* ---- running ---- */

typedef struct result {
    int        n;
    ch_tensor *out[STEPS * MOST_OUT * 2 + MOST_VARS];
} result;

static void forget(result *x)
{
    while (x->n > 0)
        ch_tensor_unref(x->out[--x->n]);
}

/* Gives each replica a batch. */
static ch_value *batch(const random_step *r, ch_dtype dtype, ch_shape shape, unsigned seed)
{
    ch_tensor *part[2];
    ch_value  *v = NULL;

    for (int i = 0; i < r->n_replicas; i++) {
        t_ok(ch_tensor_new(dtype, shape, &part[i]));
        for (int64_t k = 0; k < ch_tensor_count(part[i]); k++) {
            int x = any(&seed, 1 << 20);

            if (dtype == CH_I64)
                ((int64_t *)ch_tensor_data_mut(part[i]))[k] = x % 97;
            else
                ((double *)ch_tensor_data_mut(part[i]))[k] = (double)x / (1 << 19) - 1;
        }
    }
    t_ok(ch_value_new(r->n_replicas > 1 ? CH_PER_REPLICA : CH_PLAIN, r->n_replicas, part, &v));
    for (int i = 0; i < r->n_replicas; i++)
        ch_tensor_unref(part[i]);
    return v;
}

/* Adds the transfers of core 0, which takes part in all exchanges. Bodies of which only a run
 * knows how often they run have run n_runs times. */
static void add_traffic(const ch_graph *g, int64_t n_runs, ch_traffic_counts *sum)
{
    for (const ch_node *n = g->first; n != NULL; n = ch__next(n)) {
        ch_graph *inside[CH_MAX_BODIES];
        int       n_inside = ch__call_bodies(n, inside);

        if (n->op == &ch__op_exchange) {
            const ch_reshard *plan = ch__exchange_plan(n);

            sum->calls[plan->kind]++;
            sum->bytes[plan->kind] +=
                plan->n_moved * (int64_t)ch_dtype_bytes(ch__exchange_dtype(n));
        }
        for (int i = 0; i < n_inside; i++) {
            ch_traffic_counts once = {.calls = {0}};
            int64_t           times = ch__body_iterations(n);

            if (times < 0)
                times = n_inside == 1 ? n_runs : (i == 0) == (n_runs == 1);
            add_traffic(inside[i], n_runs, &once);
            for (int k = 0; k < CH_TRAFFIC_COUNT; k++) {
                sum->calls[k] += times * once.calls[k];
                sum->bytes[k] += times * once.bytes[k];
            }
        }
    }
}

/* Sets the transfers between the cores to those of a run in which such bodies ran n_runs times.
 */
static void set_traffic(ch_function *f, int64_t n_runs, ch_layout_report *r)
{
    ch_prepared      *p = ch__function_last(f);
    ch_traffic_counts sum = {.calls = {0}};
    ch_traffic       *to = &r->all_reduce;

    add_traffic(p->program[p->which[0]]->graph, n_runs, &sum);
    for (int k = CH_TRAFFIC_ALL_REDUCE; k <= CH_TRAFFIC_OTHER; k++)
        to[k - CH_TRAFFIC_ALL_REDUCE] = (ch_traffic){sum.calls[k], sum.bytes[k]};
    ch__prepared_unref(p);
}

/* Compares the planned bytes with those that the kernels have moved. */
static void check_traffic(const random_step *r, ch_function *f, ch_tuple *got)
{
    ch_layout_report  planned, measured;
    const ch_traffic *p = &planned.all_reduce, *m = &measured.all_reduce;

    t_ok(ch_function_report_layouts(f, &planned, &measured));
    if (r->n_conditional > 1)
        return;
    if (r->n_conditional == 1) {
        const ch_value *v = ch_tuple_at(got, ch_tuple_count(got) - 1);

        set_traffic(f, llround(*(const double *)ch_tensor_data(ch_value_at(v, 0))), &planned);
    }
    for (int i = 0; &p[i] <= &planned.cross_replica; i++)
        if (p[i].count != m[i].count || p[i].bytes != m[i].bytes)
            fail_msg("traffic %d: planned %lld transfers of %lld bytes, counted %lld of %lld",
                     i, (long long)p[i].count, (long long)p[i].bytes, (long long)m[i].count,
                     (long long)m[i].bytes);
}

/* Trains two steps. Takes over the reference to the strategy. */
static void train(random_step *r, ch_strategy *st, result *out)
{
    ch_function *f = NULL;

    out->n = 0;
    t_ok(ch_function_new("random step", record, r, &f));
    ch_function_static_rows(f);
    t_ok(ch_optimizer_sgd(0.1, NULL, NULL, &r->o));
    for (int i = 0; i < r->n_vars; i++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "v%d", i);
        t_ok(ch_var_new(st,
                        &(ch_var_spec){.name = name,
                                       .dtype = CH_F64,
                                       .shape = r->shape[i],
                                       .init = ch_init_uniform(-0.6, 0.6),
                                       .split = r->split[i],
                                       .n_split = r->shape[i].rank},
                        &r->var[i]));
    }
    for (int i = 0; i < STEPS; i++) {
        ch_value *v[2] = {
            batch(r, CH_F64, ch_shape_of(r->rows, r->width, r->depth), r->seed + (unsigned)i),
            batch(r, CH_I64, ch_shape_of(7), r->seed + 77 + (unsigned)i)};
        ch_tuple *in = NULL, *got = NULL;

        t_ok(ch_tuple_new(2, v, NULL, &in));
        t_ok(ch_strategy_run(st, f, in, &got));
        for (int o = 0; o < ch_tuple_count(got); o++)
            for (int c = 0; c < ch_value_count(ch_tuple_at(got, o)); c++)
                out->out[out->n++] = ch_tensor_ref(ch_value_at(ch_tuple_at(got, o), c));
        if (ch_strategy_logical_devices(st) > 1)
            check_traffic(r, f, got);
        ch_tuple_unref(got);
        ch_tuple_unref(in);
        ch_value_unref(v[0]);
        ch_value_unref(v[1]);
    }
    for (int i = 0; i < r->n_vars; i++) {
        t_ok(ch_var_get(r->var[i], &out->out[out->n++]));
        ch_var_unref(r->var[i]);
    }
    ch_function_unref(f);
    ch_optimizer_unref(r->o);
    ch_strategy_unref(st);
}

static void compare(const result *got, const result *want)
{
    assert_int_equal(got->n, want->n);
    for (int i = 0; i < want->n; i++) {
        const double *a = ch_tensor_data(got->out[i]), *b = ch_tensor_data(want->out[i]);
        double        size = 1;

        assert_true(
            ch_shape_equal(ch_tensor_shape(got->out[i]), ch_tensor_shape(want->out[i])));
        for (int64_t k = 0; k < ch_tensor_count(want->out[i]); k++)
            size = fmax(size, fabs(b[k]));
        for (int64_t k = 0; k < ch_tensor_count(want->out[i]); k++)
            if (!(fabs(a[k] - b[k]) <= 1e-9 * size) && !(isnan(a[k]) && isnan(b[k])))
                fail_msg("result %d: element %lld is %.15g, want %.15g", i, (long long)k, a[k],
                         b[k]);
    }
}

static ch_strategy *unsharded(const random_step *r)
{
    ch_strategy *st = NULL;

    if (r->n_replicas > 1)
        return t_mirrored(r->n_replicas);
    t_ok(ch_strategy_one_device("GPU:0", &st));
    return st;
}

/* TPU-5.5: random steps, annotations and bodies. */
static void random_steps_train_as_on_one_device(void **state)
{
    const char *first = getenv("T_FIRST_SEED"), *count = getenv("T_SEEDS");
    const char *cases = getenv("T_CASES");
    bool        is_long = cases != NULL && atoi(cases) >= 1000;
    unsigned    begin = first != NULL ? (unsigned)atoi(first) : 0;
    unsigned    n = count != NULL ? (unsigned)atoi(count) : is_long ? 10000 : 250;

    (void)state;
    for (unsigned seed = begin; seed < begin + n; seed++) {
        random_step r;
        result      want, got;

        choose(&r, seed);
        alarm(MOST_SECONDS); /* ends the program if the step does not end */
        printf("seed %u: %d x %d cores\n", seed, r.n_replicas, r.n_cores);
        t_ok(ch__config_set("replicas", seed % 4 == 3 ? "threads" : "turns"));
        train(&r, unsharded(&r), &want);
        train(&r, t_cores_strategy(r.n_replicas, r.n_cores, r.mesh), &got);
        compare(&got, &want);
        forget(&got);
        forget(&want);
    }
    alarm(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_steps_train_as_on_one_device),
    };

    t_leave_out_a_check();
    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* shows the seed if the program is ended */
    return cmocka_run_group_tests(tests, t_eight_gpus, NULL);
}
