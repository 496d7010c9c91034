/* test/graph/test_print.c -- the readable text form of graphs.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "cohort/ops.h"
#include "graph/step.h"

static ch_graph *finished(ch_step *s)
{
    ch_graph *g = NULL;

    if (ch__step_finish(s, &g) != CH_OK)
        fail_msg("%s", ch_error_message());
    ch__step_free(s);
    return g;
}

static ch_step *begun(const char *name)
{
    const ch_dims by4 = {2, {{1, 1}, {4, 0}}}, ids = {1, {{2, 1}}};
    ch_step      *s = NULL;

    assert_int_equal(ch__step_new(name, NULL, &s), CH_OK);
    s->graph->n_symbols = 1;
    ch__step_add_input(s, "x", CH_F32, &by4);
    ch__step_add_input(s, NULL, CH_I64, &ids);
    return s;
}

static void assert_prints(const ch_graph *g, const char *want)
{
    char text[4096];

    int n = ch_graph_print(g, text, sizeof(text));

    assert_string_equal(text, want);
    assert_int_equal(n, strlen(want));
}

static void graph_print_writes_one_line_per_node(void **state)
{
    const float data[] = {1, -2, 3.5f, 0, 5, 6, 7, 8};
    static int  key_w, key_b;
    ch_step    *s = begun("train");
    ch_node    *w = ch__step_read(s, &key_w, "w", CH_F32, ch_shape_of(4, 2)), *y;
    ch_tensor  *t = NULL;
    ch_graph   *g;

    assert_int_equal(ch_tensor_copy_of(CH_F32, ch_shape_of(4, 2), data, &t), CH_OK);
    ch_step_enter(s, "block");
    ch_step_enter(s, "dense");
    y = ch_matmul(ch_step_in(s, 0), false, w, false);
    ch_step_leave(s);
    y = ch_mul(y, ch_number(s, 0.5));
    ch_step_leave(s);
    ch__step_write(s, &key_w, "w", CH_F32, ch_shape_of(4, 2), ch_constant(s, t));
    ch__step_read(s, &key_b, "b", CH_F32, ch_shape_of(2));
    ch_step_out(s, "y", y);
    ch_step_out(s, NULL, ch_transpose(y, 2, (const int[]){1, 0}));
    g = finished(s);
    assert_prints(g, "step train(%0 x: f32(rows, 4), %1: i64(2*rows))\n"
                     "  %2 = read w                                 f32(4, 2)\n"
                     "  # block/dense\n"
                     "  %3 = matmul %0 %2                           f32(rows, 2)\n"
                     "  # block\n"
                     "  %4 = constant 0.5 weak=true                 f64()\n"
                     "  %5 = cast %4                                f32()\n"
                     "  %6 = mul %3 %5                              f32(rows, 2)\n"
                     "  #\n"
                     "  %7 = constant [[1 -2] [3.5 0] [5 6] [7 8]]  f32(4, 2)\n"
                     "  %8 = read b                                 f32(2)\n"
                     "  %9 = transpose %6 perm=(1, 0)               f32(2, rows)\n"
                     "  write w = %7\n"
                     "  return y = %6, %9\n");
    ch_graph_unref(g);
    ch_tensor_unref(t);
    (void)state;
}

static void twice(ch_step *s, void *arg, ch_node **out)
{
    ch_step_enter(s, "twice");
    out[0] = ch_mul(arg, ch_number(s, 2));
    ch_step_leave(s);
}

static void same(ch_step *s, void *arg, ch_node **out)
{
    out[0] = ch_identity(arg);
    (void)s;
}

static void graph_print_writes_bodies_below_their_call(void **state)
{
    ch_step  *s = begun("choose");
    ch_node  *x = ch_step_in(s, 0), *y = NULL;
    ch_graph *g;

    ch_cond(ch_less(ch_rows(x), ch_number(s, 9)), 1, twice, same, x, &y);
    ch_step_out(s, "y", y);
    g = finished(s);
    assert_prints(g, "step choose(%0 x: f32(rows, 4), %1: i64(2*rows))\n"
                     "  %2 = constant 9 weak=true  f64()\n"
                     "  %3 = rows %0               i64()\n"
                     "  %4 = cast %3               f64()\n"
                     "  %5 = less %4 %2            bool()\n"
                     "  %6 = cond %5 %0 %0         f32(rows, 4)\n"
                     "      then(%1: f32(rows, 4))\n"
                     "        # twice\n"
                     "        %0 = constant 2 weak=true  f64()\n"
                     "        %2 = cast %0               f32()\n"
                     "        %3 = mul %1 %2             f32(rows, 4)\n"
                     "        return %3\n"
                     "      otherwise(%0: f32(rows, 4))\n"
                     "        %1 = identity %0          f32(rows, 4)\n"
                     "        return %1\n"
                     "  return y = %6\n");
    ch_graph_unref(g);
    (void)state;
}

static void graph_print_returns_the_length_when_the_text_does_not_fit(void **state)
{
    ch_graph *g = finished(begun("small"));
    char      text[8] = "", all[128];
    int       n = ch_graph_print(g, all, sizeof(all));

    assert_int_equal(n, strlen(all));
    assert_int_equal(ch_graph_print(g, text, sizeof(text)), n);
    assert_string_equal(text, "step sm");
    assert_int_equal(ch_graph_print(g, NULL, 0), n);
    ch_graph_unref(g);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graph_print_writes_one_line_per_node),
        cmocka_unit_test(graph_print_writes_bodies_below_their_call),
        cmocka_unit_test(graph_print_returns_the_length_when_the_text_does_not_fit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
