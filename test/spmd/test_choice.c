/* test/spmd/test_choice.c -- which layouts values get, and which ranges calls compute.
 *
 * Each case records a tiny step with numbers for all sizes, makes its division, and compares
 * the wanted layouts, their origins, and the layouts in which calls compute with those that the
 * rules of propagate.c and choose.c give. Annotations, variables and outputs have names.
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
#include "spmd/divide.h"

enum { MOST_VARS = 4, NONE = -1 };

/* A step and its division. */
typedef struct plan {
    ch_step         *s;
    ch_spmd_options  opt;
    int              n_vars, axis[MOST_VARS]; /* the axis over which a variable is split */
    ch_graph        *g;
    ch_core_division d;
} plan;

static void ok(ch_status rc)
{
    if (rc != CH_OK)
        fail_msg("%s: %s", ch_status_name(rc), ch_error_message());
}

/* ---- recording ---- */

static ch_node *input(plan *p, ch_shape shape)
{
    ch_dims dims = ch__dims_of(shape);

    return ch__step_add_input(p->s, NULL, CH_F32, &dims);
}

/* Records an annotation. The axes of a mesh are those of p->opt. */
static ch_node *over(ch_node *x, int n, const int *mesh_axis)
{
    return ch__annotate(NULL, x, CH_ANNOTATION_MESH, n, mesh_axis);
}

static ch_node *by_rows(ch_node *x)
{
    return over(x, 2, (int[]){0, CH_OFF});
}

static ch_node *by_columns(ch_node *x)
{
    return over(x, 2, (int[]){CH_OFF, 0});
}

static ch_node *replicated(ch_node *x)
{
    return ch__annotate(NULL, x, CH_ANNOTATION_REPLICATE, 0, NULL);
}

static char names[MOST_VARS][2] = {"0", "1", "2", "3"}; /* of variables */

/* Lets a value be the new value of a variable whose axis `axis` is split over all cores. */
static void write(plan *p, ch_node *value, int axis)
{
    char *name = names[p->n_vars];

    p->axis[p->n_vars++] = axis;
    ch__step_write(p->s, name, name, CH_F32, ch_node_shape(value), value);
}

static ch_node *read(plan *p, ch_shape shape, int axis)
{
    char *name = names[p->n_vars];

    p->axis[p->n_vars++] = axis;
    return ch__step_read(p->s, name, name, CH_F32, shape);
}

static ch_status variable_layout(void *arg, const ch_resource *v, ch_core_layout *out,
                                 ch_layout_source *source, const char **rule)
{
    const plan *p = arg;
    int         axis[CH_MAX_RANK];

    *source = CH_LAYOUT_VARIABLE;
    *rule = NULL;
    for (int k = 0; k < v->shape.rank; k++)
        axis[k] = k == p->axis[v->name[0] - '0'] ? CH_MESH_ALL : CH_OFF;
    return ch__layout_over_mesh(v->name, p->opt.n_mesh, p->opt.mesh, v->shape.rank, axis, out);
}

/* Returns the specialised graph of a recorded step. */
static ch_graph *finish(ch_step *s)
{
    ch_graph *g = NULL;

    ok(ch_step_status(s));
    ok(ch__step_finish(s, &g));
    ch__step_free(s);
    g->is_concrete = true;
    g->step = NULL;
    ok(ch__pass_dead(g));
    return g;
}

/* ---- the division ---- */

/* Records a step and divides it among the cores of a mesh, ended by 0. */
static void make(plan *p, const int *mesh, void (*record)(plan *p))
{
    *p = (plan){.opt = {.n_cores = 1, .mesh = mesh, .variable = variable_layout, .arg = p}};
    for (; mesh[p->opt.n_mesh] > 0; p->opt.n_mesh++)
        p->opt.n_cores *= mesh[p->opt.n_mesh];
    ok(ch__step_new("step", NULL, &p->s));
    record(p);
    p->g = finish(p->s);
    p->d.opt = &p->opt;
    ok(ch__layout_table_new(p->opt.n_cores, &p->d.layouts));
    ok(ch__division_begin(&p->d, p->g));
    ok(ch__propagate(&p->d));
    ok(ch__choose(&p->d));
}

static void forget(plan *p)
{
    ch_layout_table *layouts = p->d.layouts;

    ch__division_end(&p->d);
    ch__layout_table_free(layouts);
    ch_graph_unref(p->g);
}

static const ch_node *value(const plan *p, const char *name)
{
    for (int i = 0; i < p->g->n_outputs; i++)
        if (p->g->output[i].name != NULL && strcmp(p->g->output[i].name, name) == 0)
            return p->g->output[i].node;
    fail_msg("no output %s", name);
    return NULL;
}

static void is_layout(const char *name, const char *what, const ch_core_layout *l,
                      const char *text)
{
    char has[256];

    (void)ch__core_layout_print(l, has, sizeof(has));
    if (strcmp(has, text) != 0)
        fail_msg("%s is %s %s, want %s", name, what, has, text);
}

static void is_wanted(const plan *p, const char *name, const char *text)
{
    is_layout(name, "wanted", p->d.value[value(p, name)->id].want, text);
}

static const ch_call_plan *call_of(const plan *p, const char *name)
{
    int i = 0;

    while (p->d.call[i].call != value(p, name)->head)
        i++;
    return &p->d.call[i];
}

/* Checks the layout in which a call computes its result. */
static void is_computed(const plan *p, const char *name, const char *text)
{
    const ch_call_plan *c = call_of(p, name);
    ch_core_layout      l;

    assert_true(ch__lower(&c->rule, c->ranges, c->rule.out[0], &c->call->dims, false, &l));
    is_layout(name, "computed", &l, text);
}

/* Checks where the wanted layout of a value comes from; `from` is NULL if from no value. */
static void is_from(const plan *p, const char *name, ch_layout_source source, const char *from,
                    const char *op)
{
    const ch_value_plan *v = &p->d.value[value(p, name)->id];

    assert_int_equal(v->source, source);
    if (from != NULL)
        assert_ptr_equal(v->from, value(p, from));
    if (op != NULL)
        assert_string_equal(v->through->op->name, op);
}

static const int four[] = {4, 0}, two_by_two[] = {2, 2, 0};

/* ---- propagation ---- */

static void record_chain(plan *p)
{
    ch_node *x = by_rows(input(p, ch_shape_of(8, 6)));
    ch_node *before = ch_relu(input(p, ch_shape_of(8, 6)));
    ch_node *y = ch_transpose(ch_relu(x), 2, (int[]){1, 0});

    ch_step_out(p->s, "x", x);
    ch_step_out(p->s, "relu", y->head->in[0]);
    ch_step_out(p->s, "y", y);
    ch_step_out(p->s, "before", before);
    ch_step_out(p->s, "annotated", by_columns(before));
    ch_step_out(p->s, "alone", ch_relu(input(p, ch_shape_of(8, 6))));
}

/* TPU-4.2: annotations, forwards and backwards. */
static void layouts_spread_forwards_and_backwards_with_their_origins(void **state)
{
    plan p;

    (void)state;
    make(&p, four, record_chain);
    is_wanted(&p, "x", "{4, 1}");
    is_from(&p, "x", CH_LAYOUT_ANNOTATION, NULL, NULL);
    is_wanted(&p, "relu", "{4, 1}");
    is_from(&p, "relu", CH_LAYOUT_NEIGHBOUR, "x", "relu");
    is_wanted(&p, "y", "{1, 4}");
    is_computed(&p, "y", "{1, 4}");
    is_from(&p, "y", CH_LAYOUT_NEIGHBOUR, "relu", "transpose");
    is_wanted(&p, "before", "{1, 4}");
    is_from(&p, "before", CH_LAYOUT_NEIGHBOUR, "annotated", "with_layout");
    is_wanted(&p, "alone", "replicated");
    is_from(&p, "alone", CH_LAYOUT_DEFAULT, NULL, NULL);
    forget(&p);
}

static void record_bias(plan *p)
{
    ch_node *bias = read(p, ch_shape_of(16), 0);
    ch_node *product =
        ch_matmul(input(p, ch_shape_of(8, 6)), false, read(p, ch_shape_of(6, 16), 1), false);
    ch_node *sum = ch_add(product, bias);

    ch_step_out(p->s, "bias", bias);
    ch_step_out(p->s, "product", product);
    ch_step_out(p->s, "sum", sum);
}

/* TPU-4.2: the layout of a product comes from the bias, not from the kernel. */
static void layouts_spread_through_elementwise_ops_before_products(void **state)
{
    plan p;

    (void)state;
    make(&p, four, record_bias);
    is_from(&p, "bias", CH_LAYOUT_VARIABLE, NULL, NULL);
    is_from(&p, "sum", CH_LAYOUT_NEIGHBOUR, "bias", "add");
    is_from(&p, "product", CH_LAYOUT_NEIGHBOUR, "sum", "add");
    is_computed(&p, "product", "{1, 4}");
    forget(&p);
}

static void record_split_inputs(plan *p)
{
    p->opt.input_axis = 1;
    record_bias(p);
    ch_step_out(p->s, "alone", ch_relu(read(p, ch_shape_of(16), 0)));
}

/* If the options split the inputs, rows stay rows although the bias is split. Values that no
 * input reaches take the layouts of variables. */
static void split_inputs_decide_before_variables(void **state)
{
    plan p;

    (void)state;
    make(&p, four, record_split_inputs);
    is_from(&p, "bias", CH_LAYOUT_VARIABLE, NULL, NULL);
    is_wanted(&p, "product", "{4, 1}");
    is_from(&p, "sum", CH_LAYOUT_NEIGHBOUR, "product", "add");
    is_wanted(&p, "sum", "{4, 1}");
    is_wanted(&p, "alone", "{4}");
    forget(&p);
}

static void record_inner(plan *p)
{
    ch_node *a = by_columns(input(p, ch_shape_of(8, 16)));
    ch_node *b = ch_relu(input(p, ch_shape_of(16, 8)));

    ch_step_out(p->s, "b", b);
    ch_step_out(p->s, "product", ch_matmul(a, false, b, false));
    b = by_columns(input(p, ch_shape_of(16, 4)));
    ch_step_out(p->s, "split b", b);
    ch_step_out(p->s, "other product", ch_matmul(a, false, b, false));
}

/* The inner axis of `a` is split. The result is a partial sum, because that repeats no
 * operations, but neither b nor the result want to be split. If b is split, it decides, although
 * `a` is larger. */
static void factor_that_is_summed_over_decides_nothing(void **state)
{
    plan p;

    (void)state;
    make(&p, four, record_inner);
    is_wanted(&p, "b", "replicated");
    is_computed(&p, "b", "replicated");
    is_wanted(&p, "product", "replicated");
    is_computed(&p, "product", "partial sum of 4");
    is_wanted(&p, "other product", "{1, 4}");
    is_from(&p, "other product", CH_LAYOUT_NEIGHBOUR, "split b", "matmul");
    forget(&p);
}

static void record_sum_of_partial(plan *p)
{
    ch_node *a = by_columns(input(p, ch_shape_of(8, 256))), *product;

    product = ch_matmul(a, false, by_rows(input(p, ch_shape_of(256, 8))), false);
    ch_step_out(p->s, "product", product);
    ch_step_out(p->s, "sum", ch_sum_all(product));
    ch_step_out(p->s, "rows", by_rows(product));
}

/* The product is scattered to the layout of the annotation: 192 numbers. The sum of the partial
 * products takes 6 numbers then, that of a product on every core 192 more. */
static void sum_of_a_partial_value_stays_partial(void **state)
{
    plan p;

    (void)state;
    make(&p, four, record_sum_of_partial);
    is_wanted(&p, "product", "{4, 1}");
    is_computed(&p, "product", "partial sum of 4");
    is_computed(&p, "sum", "partial sum of 4");
    is_computed(&p, "rows", "{4, 1}");
    forget(&p);
}

static int64_t rows, columns; /* of record_conflict */

static void record_conflict(plan *p)
{
    ch_node *a = by_rows(input(p, ch_shape_of(rows, 16)));
    ch_node *b = by_columns(input(p, ch_shape_of(16, columns)));

    ch_step_out(p->s, "a", a);
    ch_step_out(p->s, "b", b);
    ch_step_out(p->s, "product", ch_matmul(a, false, b, false));
}

static void larger_input_decides_a_conflict(void **state)
{
    plan p;

    (void)state;
    rows = 12;
    columns = 8;
    make(&p, four, record_conflict);
    is_wanted(&p, "product", "{4, 1}");
    is_from(&p, "product", CH_LAYOUT_NEIGHBOUR, "a", "matmul");
    is_computed(&p, "product", "{4, 1}");
    forget(&p);
    columns = 13;
    make(&p, four, record_conflict);
    is_wanted(&p, "product", "{1, 4}");
    is_from(&p, "product", CH_LAYOUT_NEIGHBOUR, "b", "matmul");
    is_computed(&p, "product", "{1, 4}");
    forget(&p);
    columns = 12; /* equal sizes: the first */
    make(&p, four, record_conflict);
    is_wanted(&p, "product", "{4, 1}");
    forget(&p);
}

enum { MANY = CH_MAX_OUT + 6 };

static void record_many(plan *p)
{
    ch_node *x[MANY];

    for (int i = 0; i + 1 < MANY; i++)
        x[i] = ch_relu(input(p, ch_shape_of(2, 8)));
    x[MANY - 1] = by_columns(input(p, ch_shape_of(1, 8)));
    ch_step_out(p->s, "first", x[0]);
    ch_step_out(p->s, "last", x[MANY - 1]);
    ch_step_out(p->s, "y", ch_concat(MANY, x, 0));
}

static void every_input_may_decide(void **state)
{
    plan p;

    (void)state;
    make(&p, four, record_many);
    is_wanted(&p, "y", "{1, 4}");
    is_from(&p, "y", CH_LAYOUT_NEIGHBOUR, "last", "concat");
    is_wanted(&p, "first", "{1, 4}");
    forget(&p);
}

static void record_finer(plan *p)
{
    ch_node *a = over(input(p, ch_shape_of(8, 8)), 2, (int[]){0, CH_OFF});
    ch_node *b = over(input(p, ch_shape_of(8, 8)), 2, (int[]){CH_OFF, 1});
    ch_node *c = over(input(p, ch_shape_of(8, 8)), 2, (int[]){CH_OFF, 0});
    ch_node *sum = ch_add(a, b), *half = ch_relu(a), *kept = ch_tanh(a);

    ch_step_out(p->s, "a", a);
    ch_step_out(p->s, "b", b);
    ch_step_out(p->s, "sum", sum);
    ch_step_out(p->s, "half", half);
    ch_step_out(p->s, "other", ch_mul(half, c));
    ch_step_out(p->s, "kept", kept);
    ch_step_out(p->s, NULL, over(kept, 2, (int[]){CH_OFF, 0}));
    ch_step_out(p->s, "whole", replicated(ch_relu(b)));
}

/* TPU-4.2: layouts that fit together make a finer one. A layout that does not fit the layout that a
 * value has does not change it. Annotations keep theirs. */
static void layouts_only_become_finer(void **state)
{
    plan p;

    (void)state;
    make(&p, two_by_two, record_finer);
    is_wanted(&p, "sum", "{2, 2}");
    is_computed(&p, "sum", "{2, 2}");
    is_wanted(&p, "a", "{2, 1} in 2 copies");
    is_wanted(&p, "b", "{1, 2} in 2 copies");
    is_wanted(&p, "half", "{2, 1} in 2 copies");
    is_wanted(&p, "other", "{2, 1} in 2 copies");
    is_from(&p, "other", CH_LAYOUT_NEIGHBOUR, "half", "mul");
    is_wanted(&p, "kept", "{2, 1} in 2 copies");
    is_from(&p, "kept", CH_LAYOUT_NEIGHBOUR, "a", "tanh");
    is_wanted(&p, "whole", "replicated");
    forget(&p);
}

/* ---- costs ---- */

static void record_tie(plan *p)
{
    ch_node *y = ch_neg(by_rows(input(p, ch_shape_of(8, 8))));

    ch_step_out(p->s, "y", y);
    write(p, y, 1);
}

/* The same bytes move before the call or after it. */
static void tie_goes_to_the_layout_of_the_result(void **state)
{
    plan p;

    (void)state;
    make(&p, four, record_tie);
    is_wanted(&p, "y", "{1, 4}");
    is_from(&p, "y", CH_LAYOUT_VARIABLE, NULL, NULL);
    is_computed(&p, "y", "{1, 4}");
    forget(&p);
}

static int64_t inner; /* of record_product */

/* The inputs of the product are split, and also on every core. Its result goes to a variable
 * that is whole on every core. */
static void record_product(plan *p)
{
    ch_node *a = by_rows(input(p, ch_shape_of(rows, inner)));
    ch_node *b =
        over(input(p, ch_shape_of(inner, columns)), 2, (int[]){CH_OFF, p->opt.n_mesh - 1});
    ch_node *y;

    ch_step_out(p->s, "all of a", replicated(a));
    ch_step_out(p->s, "all of b", replicated(b));
    y = ch_matmul(a, false, b, false);
    ch_step_out(p->s, "y", y);
    write(p, y, NONE);
}

/* The product of (8, k) and (k, 8) has 128 k operations. Four cores repeat 384 k of them, or
 * all-gather 3 * 64 numbers: 0.1 * 384 k = 768 for k = 20. */
static void operation_costs_a_tenth_of_a_byte(void **state)
{
    plan p;

    (void)state;
    rows = columns = 8;
    inner = 20;
    make(&p, four, record_product);
    is_computed(&p, "y", "replicated");
    forget(&p);
    inner = 21;
    make(&p, four, record_product);
    is_computed(&p, "y", "{4, 1}");
    forget(&p);
}

/* Rows and columns cost the same. */
static void next_tie_goes_to_the_layout_of_the_larger_input(void **state)
{
    plan p;

    (void)state;
    inner = 64;
    rows = 8;
    columns = 16;
    make(&p, four, record_product);
    is_computed(&p, "y", "{1, 4}");
    forget(&p);
    rows = 16;
    columns = 8;
    make(&p, four, record_product);
    is_computed(&p, "y", "{4, 1}");
    forget(&p);
}

/* The layouts of two inputs together repeat nothing. */
static void combination_of_two_layouts_is_chosen_if_it_costs_less(void **state)
{
    plan p;

    (void)state;
    inner = 64;
    rows = columns = 8;
    make(&p, two_by_two, record_product);
    is_computed(&p, "y", "{2, 2}");
    forget(&p);
}

static ch_node *by_middle_axis(ch_node *x)
{
    return over(x, 3, (int[]){CH_OFF, 0, CH_OFF});
}

/* Each of the first nine inputs is on a core of its own. The last and smallest input is split
 * over all cores. The cores have the other inputs in this layout too, so in it nothing is
 * missing, and nothing is repeated. */
static void record_ten_layouts(plan *p)
{
    ch_node *x[10], *y;

    for (int i = 0; i < 9; i++) {
        x[i] = ch__annotate(NULL, input(p, ch_shape_of(2, 16, 4)), CH_ANNOTATION_ASSIGN, 1, &i);
        ch_step_out(p->s, NULL, by_middle_axis(x[i]));
    }
    x[9] = by_middle_axis(input(p, ch_shape_of(1, 16, 4)));
    y = ch_concat(10, x, 0);
    ch_step_out(p->s, "y", y);
    write(p, y, NONE);
}

static void layout_of_every_input_is_a_candidate(void **state)
{
    plan p;

    (void)state;
    make(&p, (int[]){16, 0}, record_ten_layouts);
    is_computed(&p, "y", "{1, 16, 1}");
    forget(&p);
}

/* ---- replicas ---- */

static void record_batch(plan *p)
{
    ch_node *x = by_rows(input(p, ch_shape_of(rows, 16))), *w = read(p, ch_shape_of(16, 5), 1);
    ch_node *y = ch_tanh(ch_matmul(x, false, w, false));

    ch_step_out(p->s, "loss", ch_sum_all(ch_add(ch_neg(y), ch_mul(y, ch_number(p->s, 0.5)))));
}

static ch_graph *batch_of(plan *p, int64_t n)
{
    *p = (plan){.opt = {.n_cores = 4, .n_mesh = 1, .mesh = four, .variable = variable_layout}};
    p->opt.arg = p;
    rows = n;
    ok(ch__step_new("step", NULL, &p->s));
    record_batch(p);
    return finish(p->s);
}

/* Returns the next call that is not of the partitioner. */
static const ch_node *next_call(const ch_node *n)
{
    while (n != NULL &&
           (strcmp(n->op->name, "exchange") == 0 || strcmp(n->op->name, "take_part") == 0 ||
            strcmp(n->op->name, "put_part") == 0))
        n = n->next;
    return n;
}

static void same_calls(const ch_graph *a, const ch_graph *b)
{
    const ch_node *x = next_call(a->first), *y = next_call(b->first);

    for (; x != NULL && y != NULL; x = next_call(x->next), y = next_call(y->next))
        assert_ptr_equal(x->op, y->op);
    assert_true(x == NULL && y == NULL);
}

/* Returns the dims of the result of the product. */
static const ch_dims *product_of(const ch_graph *g)
{
    const ch_node *n = g->first;

    while (n != NULL && strcmp(n->op->name, "matmul") != 0)
        n = n->next;
    return n != NULL ? &n->dims : NULL;
}

/* The rows of x are split, and the columns of the variable. Of 9 rows, x has more bytes than
 * the variable and decides; of one row it has less. */
static void layouts_are_decided_for_the_replica_with_the_largest_inputs(void **state)
{
    (void)state;
    for (int largest = 0; largest < 2; largest++)
        for (int64_t least = 0; least <= 1; least++) {
            plan           p;
            ch_graph      *g[2], *core[8] = {NULL};
            const ch_dims *y;

            for (int r = 0; r < 2; r++)
                g[r] = batch_of(&p, r == largest ? 9 : least);
            ok(ch__spmd_divide(&p.opt, 2, g, core, NULL));
            y = product_of(core[(ptrdiff_t)4 * largest]);
            assert_true(y->dim[0].n == 3 && y->dim[1].n == 5);
            y = product_of(core[4 - (ptrdiff_t)4 * largest]);
            if (least == 1) {
                assert_true(y->dim[0].n == 1 && y->dim[1].n == 5);
                same_calls(core[0], core[4]);
            }
            for (int c = 0; c < 8; c++)
                ch_graph_unref(core[c]);
            for (int r = 0; r < 2; r++)
                ch_graph_unref(g[r]);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_spread_forwards_and_backwards_with_their_origins),
        cmocka_unit_test(layouts_spread_through_elementwise_ops_before_products),
        cmocka_unit_test(split_inputs_decide_before_variables),
        cmocka_unit_test(factor_that_is_summed_over_decides_nothing),
        cmocka_unit_test(sum_of_a_partial_value_stays_partial),
        cmocka_unit_test(larger_input_decides_a_conflict),
        cmocka_unit_test(every_input_may_decide),
        cmocka_unit_test(layouts_only_become_finer),
        cmocka_unit_test(tie_goes_to_the_layout_of_the_result),
        cmocka_unit_test(operation_costs_a_tenth_of_a_byte),
        cmocka_unit_test(next_tie_goes_to_the_layout_of_the_larger_input),
        cmocka_unit_test(combination_of_two_layouts_is_chosen_if_it_costs_less),
        cmocka_unit_test(layout_of_every_input_is_a_candidate),
        cmocka_unit_test(layouts_are_decided_for_the_replica_with_the_largest_inputs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
