/* test/spmd/test_search.c -- the search for layouts, without runs: which plans it finds, what
 * they cost, and how many plans it looks at.
 *
 * A step is recorded with numbers for all sizes, with gradients and updates of its variables,
 * on 4 cores unless a test says otherwise. A plan by hand is evaluated by a search that may
 * choose nothing.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cohort/cohort.h>

#include "graph/step.h"
#include "spmd/search.h"

enum { MOST_VARS = 200, CORES = 4, WHOLE = -1 };

/* A step under construction. */
typedef struct recording {
    ch_step *s;
    int      n_vars;
    struct {
        char     name[48];
        int      axis; /* of the plan by hand: the axis that is split; WHOLE */
        int      leader;
        ch_node *read;
    } var[MOST_VARS];
    void (*record)(struct recording *r);
    ch_shape  x;        /* of the input */
    int64_t   sizes[4]; /* for `record` */
    unsigned  seed;
    ch_graph *g;
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

/* Adds a variable. `axis` is its split in the plan by hand. */
static ch_node *var(recording *r, const char *name, ch_shape shape, int axis)
{
    int i = r->n_vars++;

    assert_in_range(i, 0, MOST_VARS - 1);
    (void)snprintf(r->var[i].name, sizeof(r->var[i].name), "%s", name);
    r->var[i].axis = axis;
    r->var[i].leader = i;
    return r->var[i].read = ch__step_read(r->s, r->var[i].name, r->var[i].name, CH_F32, shape);
}

static ch_status by_hand(void *arg, const ch_resource *v, ch_core_layout *out,
                         ch_layout_source *source, const char **rule)
{
    const recording *r = arg;
    int              i = 0;

    *source = CH_LAYOUT_VARIABLE;
    *rule = NULL;
    while (strcmp(r->var[i].name, v->name) != 0)
        i++;
    if (r->var[i].axis == WHOLE)
        ch__layout_replicated(CORES, v->shape.rank, out);
    else
        ch__layout_over_cores(CORES, v->shape.rank, r->var[i].axis, out);
    return CH_OK;
}

/* Subtracts the gradient of the loss, or of a value with the gradient `dy`, from all
 * variables. */
static void update(recording *r, ch_node *y, ch_node *dy)
{
    ch_node *read[MOST_VARS] = {NULL}, *grad[MOST_VARS];
    int      n = r->n_vars;

    for (int i = 0; i < n; i++)
        read[i] = r->var[i].read;
    ch_gradients(y, dy, n, read, grad);
    for (int i = 0; i < n; i++)
        ch__step_write(r->s, r->var[i].name, r->var[i].name, CH_F32, ch_node_shape(read[i]),
                       ch_sub(read[i], ch_mul(ch_number(r->s, 0.1), grad[i])));
}

static void begin(recording *r)
{
    ok(ch__step_new("step", NULL, &r->s));
    r->record(r);
    ok(ch_step_status(r->s));
    ok(ch__step_finish(r->s, &r->g));
    ch__step_free(r->s);
    r->g->is_concrete = true;
    r->g->step = NULL;
    ok(ch__pass_dead(r->g));
}

/* A search. */
typedef struct question {
    bool    by_hand; /* evaluates the plan by hand: inputs along `input_axis` - 1, 0: whole */
    int     input_axis;
    int64_t memory; /* 0: not limited */
    int     mesh[2];
} question;

static ch_status search(recording *r, question q, ch_search_result *out)
{
    static const int  one[] = {CORES};
    ch_search_var     may[MOST_VARS];
    ch_spmd_options   opt = {.n_cores = CORES,
                             .n_mesh = q.mesh[0] > 0 ? 2 : 1,
                             .mesh = q.mesh[0] > 0 ? q.mesh : one,
                             .variable = by_hand,
                             .arg = r,
                             .input_axis = q.input_axis};
    ch_search_problem p = {
        .step = "step", .opt = &opt, .var = may, .splits_inputs = !q.by_hand, .n_replicas = 1};
    ch_status rc;

    for (int i = 0; i < r->g->n_resources; i++)
        may[i] = (ch_search_var){.is_free = !q.by_hand, .leader = r->var[i].leader};
    for (int c = 0; c < CORES; c++)
        p.memory[c] = q.memory > 0 ? q.memory : INT64_MAX;
    rc = ch__search(&p, r->g, out);
    if (rc == CH_OK && !out->fits) {
        rc = ch__search_fail(out->report->n_plans, &out->needs);
        ch__search_drop(out);
    }
    return rc;
}

/* Returns the plan by hand, which the caller must drop. */
static ch_search_result plan_by_hand(recording *r, int input_axis)
{
    ch_search_result found;

    ok(search(r, (question){.by_hand = true, .input_axis = input_axis}, &found));
    assert_int_equal(found.report->n_plans, 1);
    return found;
}

static void end(recording *r)
{
    ch_graph_unref(r->g);
}

/* ---- a transformer block against two plans by hand ---- */

enum { HEADS = 3 }; /* sizes: batch, time, width, heads */

static ch_node *by_heads(const recording *r, ch_node *x)
{
    const int64_t *n = r->sizes;

    x = ch_reshape(x, ch_shape_of(n[0], n[1], n[HEADS], n[2] / n[HEADS]));
    return ch_transpose(x, 4, (int[]){0, 2, 1, 3});
}

static ch_node *norm(recording *r, const char *gamma, const char *beta, ch_node *x)
{
    ch_node *g = var(r, gamma, ch_shape_of(r->sizes[2]), WHOLE);

    return ch_layer_norm(x, g, var(r, beta, ch_shape_of(r->sizes[2]), WHOLE), 1e-5);
}

/* The plan by hand splits kernels by heads and hidden units. */
static void record_block(recording *r)
{
    int64_t  width = r->sizes[2];
    ch_shape square = ch_shape_of(width, width),
             all = ch_shape_of(r->sizes[0], r->sizes[1], width);
    ch_node *x = input(r, all), *dy = input(r, all), *h = norm(r, "gamma/in", "beta/in", x), *y;

    h = ch_attention(by_heads(r, ch_matmul(h, false, var(r, "query", square, 1), false)),
                     by_heads(r, ch_matmul(h, false, var(r, "key", square, 1), false)),
                     by_heads(r, ch_matmul(h, false, var(r, "value", square, 1), false)), NULL,
                     NULL);
    h = ch_reshape(ch_transpose(h, 4, (int[]){0, 2, 1, 3}), all);
    y = ch_add(x, ch_matmul(h, false, var(r, "output", square, 0), false));
    h = norm(r, "gamma/mid", "beta/mid", y);
    h = ch_gelu(ch_matmul(h, false, var(r, "up", ch_shape_of(width, 4 * width), 1), false));
    h = ch_matmul(h, false, var(r, "down", ch_shape_of(4 * width, width), 0), false);
    y = ch_add(y, h);
    update(r, y, dy);
    ch_step_out(r->s, "y", y);
}

/* Returns the part of the bytes of all variables that core c has. */
static double part_of_variables(const recording *r, const ch_core_layout *tiles, int c)
{
    double part = 0, all = 0;

    for (int i = 0; i < r->g->n_resources; i++) {
        ch_shape  shape = r->g->resource[i].shape;
        ch_region at;

        all += (double)ch_shape_count(shape);
        if (ch__core_region(&tiles[i], shape, c, &at))
            part += (double)ch__region_count(&at, shape.rank);
    }
    return part / all;
}

/* Checks that the search finds a plan for a block that moves at most `most` of the bytes of the
 * better of two plans by hand, and keeps a quarter of the variables on each core. */
static void check_block(int64_t batch, int64_t time, int64_t width, int64_t heads, double most)
{
    recording        r = {.record = record_block, .sizes = {batch, time, width, heads}};
    ch_search_result units, rows, found;
    double           better;

    begin(&r);
    units = plan_by_hand(&r, 0);
    assert_true(units.report->bytes == (double)(4 * 6 * 4 * batch * time * width));
    for (int i = 0; i < r.n_vars; i++)
        r.var[i].axis = 0;
    rows = plan_by_hand(&r, 1);
    ok(search(&r, (question){.by_hand = false}, &found));
    better =
        units.report->bytes < rows.report->bytes ? units.report->bytes : rows.report->bytes;
    if (found.report->bytes > most * better)
        fail_msg("the plan moves %.0f B; %.0f by heads and units, %.0f by rows",
                 found.report->bytes, units.report->bytes, rows.report->bytes);
    for (int c = 0; c < CORES; c++) /* the vectors of the norms are whole */
        assert_true(part_of_variables(&r, found.tiles, c) < 0.252);
    ch__search_drop(&units);
    ch__search_drop(&rows);
    ch__search_drop(&found);
    end(&r);
}

static void block_found_by_search_moves_no_more_than_plans_by_hand(void **state)
{
    (void)state;
    check_block(8, 128, 384, 8, 0.9);
    check_block(32, 128, 384, 8, 1);
    check_block(4, 64, 768, 12, 1);
}

/* ---- classes ---- */

static void variables_are_a_class_if_their_names_differ_only_in_numbers(void **state)
{
    const ch_shape s = ch_shape_of(2, 3);
    const struct {
        const char *a, *b;
        bool        same;
    } rows[] = {
        {"layer1/kernel", "layer12/kernel", true},
        {"dense/kernel", "dense_1/kernel", true},
        {"dense_1/bias", "dense_20/bias", true},
        {"a/kernel", "b/kernel", false},
        {"dense/kernel", "dense/bias", false},
        {"dense", "dense_", false},
        {"w", "w1x", false},
        {"1", "22", true},
        {"h0/q", "h1/q", true},
        {"", "3", true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (ch__same_class(rows[i].a, s, rows[i].b, s) != rows[i].same ||
            ch__same_class(rows[i].b, s, rows[i].a, s) != rows[i].same)
            fail_msg("\"%s\" and \"%s\"", rows[i].a, rows[i].b);
        assert_false(ch__same_class(rows[i].a, s, rows[i].b, ch_shape_of(3, 2)));
    }
}

/* ---- random networks ---- */

static unsigned next_random(recording *r, unsigned n)
{
    r->seed = r->seed * 1664525u + 1013904223u;
    return (r->seed >> 8) % n;
}

/* Records layers of random kinds and sizes. */
static void record_random(recording *r)
{
    int64_t  rows = 1 + next_random(r, 40), width = 1 + next_random(r, 30);
    bool     is_image = next_random(r, 3) == 0;
    int      n_layers = 1 + (int)next_random(r, 4);
    ch_node *x;

    if (is_image) {
        int64_t in = 1 + next_random(r, 3), side = 4 + next_random(r, 9);

        rows = 1 + next_random(r, 5);
        x = input(r, ch_shape_of(rows, side, side, in));
        x = ch_conv2d(x, var(r, "filter", ch_shape_of(3, 3, in, 4), WHOLE),
                      &(ch_conv_options){.padding = CH_PAD_SAME});
        x = ch_relu(x);
        width = side * side * 4;
        x = ch_reshape(x, ch_shape_of(rows, width));
    } else {
        x = input(r, ch_shape_of(rows, width));
    }
    for (int i = 0; i < n_layers; i++) {
        int64_t out = 1 + next_random(r, 60);
        char    name[32];

        (void)snprintf(name, sizeof(name), "kernel%d", i);
        x = ch_matmul(x, false, var(r, name, ch_shape_of(width, out), WHOLE), false);
        (void)snprintf(name, sizeof(name), "bias%d", i);
        x = ch_add(x, var(r, name, ch_shape_of(out), WHOLE));
        switch (next_random(r, 4)) {
        case 0:
            x = ch_relu(x);
            break;
        case 1:
            x = ch_softmax(x, -1);
            break;
        case 2:
            x = ch_tanh(x);
            break;
        default:
            (void)snprintf(name, sizeof(name), "gamma%d", i);
            x = ch_mul(x, var(r, name, ch_shape_of(out), WHOLE));
        }
        width = out;
    }
    update(r, ch_mean_all(ch_square(x)), NULL);
}

/* Sets the plan by hand to a starting point: 0: all whole, 1: along axis 0, 2: along the last
 * axis. */
static void start_from(recording *r, int which)
{
    for (int i = 0; i < r->g->n_resources; i++) {
        ch_shape shape = r->g->resource[i].shape;
        int      axis = which == 1 ? 0 : shape.rank - 1;

        r->var[i].axis = which > 0 && shape.rank > 0 && shape.dim[axis] > 1 ? axis : WHOLE;
    }
}

static ch_core_layout found_tiles[MOST_VARS];

/* Gives the variables the layouts that were found. */
static ch_status as_found(void *arg, const ch_resource *v, ch_core_layout *out,
                          ch_layout_source *source, const char **rule)
{
    const recording *r = arg;
    int              i = 0;

    *source = CH_LAYOUT_VARIABLE;
    *rule = NULL;
    while (strcmp(r->g->resource[i].name, v->name) != 0)
        i++;
    ch__layout_copy(&found_tiles[i], out);
    return CH_OK;
}

/* Returns the cost of the plan that was found, from a search that may choose nothing. */
static double cost_again(recording *r, const ch_search_result *found)
{
    static const int  one[] = {CORES};
    ch_search_var     may[MOST_VARS] = {{.is_free = false}};
    ch_spmd_options   opt = {.n_cores = CORES,
                             .n_mesh = 1,
                             .mesh = one,
                             .variable = as_found,
                             .arg = r,
                             .input_axis = found->input_axis};
    ch_search_problem p = {.step = "step", .opt = &opt, .var = may, .n_replicas = 1};
    ch_search_result  again;
    double            cost;

    for (int i = 0; i < r->g->n_resources; i++)
        ch__layout_copy(&found->tiles[i], &found_tiles[i]);
    for (int c = 0; c < CORES; c++)
        p.memory[c] = INT64_MAX;
    ok(ch__search(&p, r->g, &again));
    cost = again.report->cost;
    ch__search_drop(&again);
    return cost;
}

static void found_plan_costs_no_more_than_any_start(void **state)
{
    const char *cases = getenv("T_CASES");
    int         n = cases != NULL && atoi(cases) >= 1000 ? 500 : 40;

    (void)state;
    for (int i = 0; i < n; i++) {
        recording        r = {.record = record_random, .seed = (unsigned)i};
        ch_search_result found;

        begin(&r);
        ok(search(&r, (question){.by_hand = false}, &found));
        assert_true(cost_again(&r, &found) == found.report->cost);
        for (int k = 0; k < CH_SEARCH_STARTS; k++) {
            ch_search_result at_start;

            start_from(&r, k / 2);
            at_start = plan_by_hand(&r, k % 2);
            if (at_start.report->cost != found.report->start_cost[k] ||
                found.report->cost > at_start.report->cost)
                fail_msg("network %d: the plan costs %.1f, start %d %.1f (%.1f in the report)",
                         i, found.report->cost, k, at_start.report->cost,
                         found.report->start_cost[k]);
            ch__search_drop(&at_start);
        }
        ch__search_drop(&found);
        end(&r);
    }
}

/* ---- the number of plans ---- */

enum { LAYERS = 6 };

static ch_node *dense(recording *r, int layer, const char *name, ch_node *x, int64_t in,
                      int64_t out)
{
    char     text[48];
    ch_node *kernel;

    (void)snprintf(text, sizeof(text), "block_%d/%s/kernel", layer, name);
    kernel = var(r, text, ch_shape_of(in, out), WHOLE);
    (void)snprintf(text, sizeof(text), "block_%d/%s/bias", layer, name);
    return ch_add(ch_matmul(x, false, kernel, false), var(r, text, ch_shape_of(out), WHOLE));
}

/* Records a GPT of 6 layers: sizes are batch, time, width, heads. */
static void record_gpt(recording *r)
{
    int64_t  width = r->sizes[2];
    ch_shape all = ch_shape_of(r->sizes[0], r->sizes[1], width);
    ch_node *x = input(r, all);

    for (int i = 0; i < LAYERS; i++) {
        char     gamma[48], beta[48];
        ch_node *h;

        (void)snprintf(gamma, sizeof(gamma), "block_%d/norm/gamma", i);
        (void)snprintf(beta, sizeof(beta), "block_%d/norm/beta", i);
        h = norm(r, gamma, beta, x);
        h = ch_attention(by_heads(r, dense(r, i, "query", h, width, width)),
                         by_heads(r, dense(r, i, "key", h, width, width)),
                         by_heads(r, dense(r, i, "value", h, width, width)), NULL,
                         &(ch_attention_options){.causal = true});
        h = ch_reshape(ch_transpose(h, 4, (int[]){0, 2, 1, 3}), all);
        x = ch_add(x, dense(r, i, "output", h, width, width));
        (void)snprintf(gamma, sizeof(gamma), "block_%d/last/gamma", i);
        (void)snprintf(beta, sizeof(beta), "block_%d/last/beta", i);
        h = ch_gelu(dense(r, i, "up", norm(r, gamma, beta, x), width, 4 * width));
        x = ch_add(x, dense(r, i, "down", h, 4 * width, width));
    }
    x = ch_matmul(x, false, var(r, "head", ch_shape_of(width, 128), WHOLE), false);
    update(r, ch_mean_all(ch_square(x)), NULL);
}

/* Checks that two searches look at the same few plans. Returns the cost of the best plan. */
static double few_plans(recording *r, question q)
{
    ch_search_result found[2];
    double           cost;

    for (int i = 0; i < 2; i++)
        ok(search(r, q, &found[i]));
    assert_in_range(found[0].report->n_plans, 20, 399);
    assert_int_equal(found[0].report->n_plans, found[1].report->n_plans);
    assert_true(found[0].report->cost == found[1].report->cost);
    assert_int_equal(found[0].input_axis, found[1].input_axis);
    for (int i = 0; i < r->g->n_resources; i++)
        assert_true(ch__layout_same_tiles(&found[0].tiles[i], &found[1].tiles[i]));
    cost = found[0].report->cost;
    for (int i = 0; i < 2; i++)
        ch__search_drop(&found[i]);
    return cost;
}

static void search_for_six_layers_looks_at_the_same_few_plans_each_time(void **state)
{
    recording r = {.record = record_gpt, .sizes = {16, 32, 64, 4}};
    double    cost;

    (void)state;
    begin(&r);
    cost = few_plans(&r, (question){.by_hand = false});
    assert_true(few_plans(&r, (question){.mesh = {2, 2}}) <= cost);
    end(&r);
}

/* ---- meshes, slots, memory ---- */

static void record_wide(recording *r)
{
    ch_node *x = input(r, ch_shape_of(64, 256));

    x = ch_relu(ch_matmul(x, false, var(r, "kernel", ch_shape_of(256, 256), WHOLE), false));
    (void)var(r, "kernel/m", ch_shape_of(256, 256), WHOLE);
    (void)var(r, "kernel/touched", ch_shape_of(256), WHOLE);
    r->var[1].leader = r->var[2].leader = 0;
    update(r, ch_mean_all(ch_square(x)), NULL);
}

static void slots_follow_the_layout_of_their_variable(void **state)
{
    recording        r = {.record = record_wide};
    ch_search_result found;

    (void)state;
    begin(&r);
    ok(search(&r, (question){.by_hand = false}, &found));
    assert_int_equal(found.report->n_classes, 1);
    assert_true(ch__layout_same_tiles(&found.tiles[0], &found.tiles[1]));
    assert_int_equal(found.tiles[2].parts[0], found.tiles[0].parts[0]);
    ch__search_drop(&found);
    end(&r);
}

static void mesh_of_two_axes_gives_more_choices(void **state)
{
    recording        r = {.record = record_wide};
    ch_search_result one, two;

    (void)state;
    begin(&r);
    ok(search(&r, (question){.by_hand = false}, &one));
    ok(search(&r, (question){.mesh = {2, 2}}, &two));
    /* a matrix: whole, 2 axes over all cores; and each over 2 axes of the mesh, and both */
    assert_in_range(one.report->n_plans, 3, 3 * 2);
    assert_in_range(two.report->n_plans, one.report->n_plans + 1, (3 + 4 + 2) * 2);
    assert_true(two.report->cost <= one.report->cost);
    ch__search_drop(&one);
    ch__search_drop(&two);
    end(&r);
}

/* Convolutions over a batch of one image. */
static void record_image(recording *r)
{
    const ch_conv_options same = {.padding = CH_PAD_SAME};
    ch_node              *x = input(r, ch_shape_of(1, 64, 64, 8));

    for (int i = 0; i < 3; i++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "filter%d", i);
        x = ch_relu(ch_conv2d(x, var(r, name, ch_shape_of(3, 3, 8, 8), WHOLE), &same));
    }
    update(r, ch_mean_all(ch_square(x)), NULL);
}

static void image_that_exceeds_a_core_is_split_along_its_rows(void **state)
{
    recording        r = {.record = record_image};
    ch_search_result found, whole;
    const int64_t    value = 64 * 64 * 8 * 4; /* bytes of an activation */

    (void)state;
    begin(&r);
    whole = plan_by_hand(&r, 0);
    ok(search(&r, (question){.memory = 3 * value}, &found));
    assert_int_equal(found.input_axis, 2);
    assert_in_range(found.report->needs, value / 2, 3 * value);
    for (int i = 0; i < CH_SEARCH_STARTS / 3; i++)
        assert_false(found.report->start_fits[i]);
    ch__search_drop(&found);
    ch__search_drop(&whole);
    end(&r);
}

static void memory_that_no_plan_meets_is_an_error_with_its_parts(void **state)
{
    recording        r = {.record = record_image};
    ch_search_result found;

    (void)state;
    begin(&r);
    assert_int_equal(search(&r, (question){.memory = 5000}, &found), CH_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(ch_error_message(), "for variables"));
    assert_non_null(strstr(ch_error_message(), "for slots"));
    assert_non_null(strstr(ch_error_message(), "for values"));
    assert_non_null(strstr(ch_error_message(), "and 5000 are left"));
    assert_null(found.tiles);
    end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(block_found_by_search_moves_no_more_than_plans_by_hand),
        cmocka_unit_test(variables_are_a_class_if_their_names_differ_only_in_numbers),
        cmocka_unit_test(found_plan_costs_no_more_than_any_start),
        cmocka_unit_test(search_for_six_layers_looks_at_the_same_few_plans_each_time),
        cmocka_unit_test(slots_follow_the_layout_of_their_variable),
        cmocka_unit_test(mesh_of_two_axes_gives_more_choices),
        cmocka_unit_test(image_that_exceeds_a_core_is_split_along_its_rows),
        cmocka_unit_test(memory_that_no_plan_meets_is_an_error_with_its_parts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
