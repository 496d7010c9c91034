/* test/spmd/test_programs.c -- the size of divided steps: how many different graphs the cores
 * of a replica have, and how many calls are in a graph.
 *
 * Each step is recorded with numbers for all sizes, with gradients and updates of its
 * variables, and divided among each number of cores from 2 to 64: with sizes that are multiples
 * of the number of cores, and with sizes that need not be. Neither number may grow with the
 * cores.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include <cohort/cohort.h>

#include "graph/step.h"
#include "spmd/annotate.h"
#include "spmd/spmd.h"

enum { MOST_VARS = 16, NONE = -1 };

/* A step under construction. */
typedef struct recording {
    ch_step *s;
    int      n_cores, n_vars;
    int64_t  parts; /* sizes of axes that are split are multiples of this */
    struct {
        char     name[16];
        int      axis; /* the axis that is split among all cores; NONE: whole on each core */
        ch_node *read;
    } var[MOST_VARS];
} recording;

static void ok(ch_status rc)
{
    if (rc != CH_OK)
        fail_msg("%s: %s", ch_status_name(rc), ch_error_message());
}

static ch_node *input(recording *r, ch_shape shape)
{
    ch_dims dims = ch__dims_of(shape);

    return ch__step_add_input(r->s, NULL, CH_F32, &dims);
}

static ch_node *var(recording *r, ch_shape shape, int axis)
{
    int   i = r->n_vars++;
    char *name = r->var[i].name;

    (void)snprintf(name, sizeof(r->var[i].name), "v%d", i);
    r->var[i].axis = axis;
    return r->var[i].read = ch__step_read(r->s, name, name, CH_F32, shape);
}

static ch_status variable_layout(void *arg, const ch_resource *v, ch_core_layout *out,
                                 ch_layout_source *source, const char **rule)
{
    const recording *r = arg;
    int              parts[CH_MAX_RANK] = {0}, i = 0;

    *source = CH_LAYOUT_VARIABLE;
    *rule = NULL;
    while (strcmp(r->var[i].name, v->name) != 0)
        i++;
    for (int k = 0; k < v->shape.rank; k++)
        parts[k] = k == r->var[i].axis ? r->n_cores : 1;
    if (r->var[i].axis == NONE)
        ch__layout_replicated(r->n_cores, v->shape.rank, out);
    else
        ch__layout_split(r->n_cores, v->shape.rank, parts, out);
    return CH_OK;
}

/* Subtracts the gradients of the loss from all variables. */
static void update(recording *r, ch_node *loss)
{
    ch_node *read[MOST_VARS], *grad[MOST_VARS];

    for (int i = 0; i < r->n_vars; i++)
        read[i] = r->var[i].read;
    ch_gradients(loss, NULL, r->n_vars, read, grad);
    for (int i = 0; i < r->n_vars; i++)
        ch__step_write(r->s, r->var[i].name, r->var[i].name, CH_F32, ch_node_shape(read[i]),
                       ch_sub(read[i], grad[i]));
    ch_step_out(r->s, "loss", loss);
}

typedef struct sizes {
    int graphs, most_calls, fewest_calls;
} sizes;

static sizes divide(void (*record)(recording *), int n_cores, int64_t parts)
{
    recording       r = {.n_cores = n_cores, .parts = parts};
    ch_spmd_options opt = {.n_cores = n_cores,
                           .n_mesh = 1,
                           .mesh = &n_cores,
                           .variable = variable_layout,
                           .arg = &r};
    ch_graph       *g = NULL, *core[CH_MAX_CORES] = {NULL};
    sizes           x = {.fewest_calls = 1 << 30};

    ok(ch__step_new("step", NULL, &r.s));
    record(&r);
    ok(ch_step_status(r.s));
    ok(ch__step_finish(r.s, &g));
    ch__step_free(r.s);
    g->is_concrete = true;
    g->step = NULL;
    ok(ch__pass_dead(g));
    ok(ch__spmd_divide(&opt, 1, &g, core, NULL));
    for (int c = 0; c < n_cores; c++) {
        int same = 0;

        while (core[same] != core[c])
            same++;
        x.graphs += same == c;
        if (core[c]->n_calls > x.most_calls)
            x.most_calls = core[c]->n_calls;
        if (core[c]->n_calls < x.fewest_calls)
            x.fewest_calls = core[c]->n_calls;
    }
    for (int c = 0; c < n_cores; c++)
        ch_graph_unref(core[c]);
    ch_graph_unref(g);
    return x;
}

/* Checks that 2 to 64 cores have at most `even` different graphs if sizes divide and at most
 * `uneven` if they do not, and that the number of calls is the same for all cores. */
static void check(const char *name, void (*record)(recording *), int even, int uneven)
{
    sizes first[2] = {divide(record, 3, 64), divide(record, 2, 64)}; /* uneven, even */

    for (int n = 2; n <= 64; n++)
        for (int divides = 64 % n == 0; divides < 2; divides++) {
            sizes x = divide(record, n, divides ? (63 + n) / n * n : 64);
            int   most = divides ? even : uneven;

            if (x.graphs > most || x.most_calls != first[divides].most_calls ||
                x.fewest_calls != first[divides].most_calls)
                fail_msg("%s: %d cores have %d graphs of %d to %d calls, want %d graphs of %d",
                         name, n, x.graphs, x.fewest_calls, x.most_calls, most,
                         first[divides].most_calls);
        }
}

/* ---- the steps ---- */

static ch_node *dense(recording *r, ch_node *x, int64_t in, int64_t out, int axis)
{
    ch_node *kernel = var(r, ch_shape_of(in, out), axis);

    return ch_add(ch_matmul(x, false, kernel, false),
                  var(r, ch_shape_of(out), axis == 1 ? 0 : NONE));
}

static void record_mlp(recording *r)
{
    int64_t  hidden = 2 * r->parts;
    ch_node *x = ch_relu(dense(r, input(r, ch_shape_of(32, 48)), 48, hidden, 1));

    update(r, ch_sum_all(ch_square(dense(r, x, hidden, 10, 0))));
}

enum { BATCH = 2, TIME = 6, HEAD = 2 };

static ch_node *by_heads(const recording *r, ch_node *x)
{
    x = ch_reshape(x, ch_shape_of(BATCH, TIME, r->parts, HEAD));
    return ch_transpose(x, 4, (int[]){0, 2, 1, 3});
}

static ch_node *norm(recording *r, ch_node *x, int64_t width)
{
    ch_node *gamma = var(r, ch_shape_of(width), NONE);

    return ch_layer_norm(x, gamma, var(r, ch_shape_of(width), NONE), 1e-5);
}

static void record_block(recording *r)
{
    int64_t  width = HEAD * r->parts, hidden = 2 * width;
    ch_shape shape = ch_shape_of(BATCH, TIME, width);
    ch_node *x = input(r, shape), *h = norm(r, x, width);
    ch_node *q = by_heads(r, dense(r, h, width, width, 1));
    ch_node *k = by_heads(r, dense(r, h, width, width, 1));
    ch_node *v = by_heads(r, dense(r, h, width, width, 1));

    h = ch_attention(q, k, v, NULL, &(ch_attention_options){.causal = true});
    h = ch_reshape(ch_transpose(h, 4, (int[]){0, 2, 1, 3}), shape);
    x = ch_add(x, dense(r, h, width, width, 0));
    h = ch_gelu(dense(r, norm(r, x, width), width, hidden, 1));
    update(r, ch_sum_all(ch_square(ch_add(x, dense(r, h, hidden, width, 0)))));
}

static void record_cnn(recording *r)
{
    const ch_conv_options same = {.padding = CH_PAD_SAME};
    int64_t               flat = r->parts * 3 * 5;
    ch_node              *x = input(r, ch_shape_of(2, 2 * r->parts, 6, 3));

    x = ch__annotate(NULL, x, CH_ANNOTATION_MESH, 4, (int[]){CH_OFF, 0, CH_OFF, CH_OFF});
    x = ch_relu(ch_conv2d(x, var(r, ch_shape_of(3, 3, 3, 4), NONE), &same));
    x = ch_max_pool2d(x, NULL);
    x = ch_relu(ch_conv2d(x, var(r, ch_shape_of(3, 3, 4, 5), NONE), &same));
    x = ch_reshape(x, ch_shape_of(2, flat));
    update(r, ch_sum_all(ch_square(dense(r, x, flat, 10, NONE))));
}

/* TPU-5.5: the program does not grow with the devices. */
static void cores_share_one_program_if_sizes_divide(void **state)
{
    (void)state;
    check("mlp", record_mlp, 1, 2);
    check("block", record_block, 1, 4);
}

/* The first core, the last core and those between differ in their halos. If the rows do not
 * divide, the graphs differ in real sizes and attributes, never in offsets alone:
 *   - the first cores have one more row, and the number of such cores is not the same for the
 *     image and for the pooled image: up to 3 classes, or 5 with the first and the last core;
 *   - the pads of max_pool2d_grad say whether a part begins inside a window, which depends on
 *     the parity of its first row: up to 2 more classes with these numbers of rows. */
static void cores_share_three_programs_if_images_are_split_by_rows(void **state)
{
    (void)state;
    check("cnn", record_cnn, 3, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cores_share_one_program_if_sizes_divide),
        cmocka_unit_test(cores_share_three_programs_if_images_are_split_by_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
