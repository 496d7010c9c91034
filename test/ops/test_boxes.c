/* test/ops/test_boxes.c -- parts of random calls, and passes over parts of calls.
 *
 * A part of a random call is a box of its output. Every box must have the elements that the
 * whole call has at these positions, to the bit. The boxes are random; some have a single
 * element, some the whole size of an axis.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include <cohort/cohort.h>
#include <cohort/ops.h>

#include "graph/attr.h"
#include "graph/graph.h"
#include "graph/program.h"
#include "graph/step.h"
#include "ops/ops.h"
#include "tensor/layout.h"

static uint64_t seed = 1;

/* Returns a random number below n. */
static int64_t below(int64_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)(seed >> 33) % n;
}

static ch_step *new_step(void)
{
    ch_step *s = NULL;

    assert_int_equal(ch__step_new("boxes", NULL, &s), CH_OK);
    return s;
}

/* A part of a call with an output of shape `box`, in memory of the step of the call. If the call
 * has an input, the part of the input is the same box. */
static ch_node *part_of(ch_node *call, const ch_region *box, int core)
{
    ch_graph    *g = call->graph;
    ch_origins  *o = ch__arena_alloc(&g->arena, sizeof(*o));
    ch_node     *in = call->n_in > 0
                          ? ch__graph_add(g, ch__roles.input, &(ch_input_attrs){0}, 0, NULL, 1)
                          : NULL;
    ch_node     *n = ch__graph_add(g, call->op, call->attrs, call->n_in, &in, 1);
    ch_call_part part = {.in = box, .out = box};

    if (call->op->local != NULL)
        assert_int_equal(call->op->local(call, &part, n->attrs), CH_OK);
    n->dtype = call->dtype;
    n->dims = call->dims;
    for (int k = 0; k < n->dims.rank; k++)
        n->dims.dim[k] = ch__dim(box->size[k]);
    if (in != NULL) {
        in->dtype = call->in[0]->dtype;
        in->dims = n->dims;
    }
    n->ordinal = call->ordinal;
    *o = (ch_origins){.n_cores = core + 1, .whole_in = call->dims, .whole_out = call->dims};
    o->in = ch__arena_alloc(&g->arena, (size_t)o->n_cores * sizeof(*o->in));
    o->out = ch__arena_alloc(&g->arena, (size_t)o->n_cores * sizeof(*o->out));
    memcpy(o->in[core], box->begin, sizeof(box->begin));
    memcpy(o->out[core], box->begin, sizeof(box->begin));
    n->origins = o;
    return n;
}

static ch_tensor *cut(ch_tensor *t, const ch_region *box)
{
    ch_tensor *view = NULL, *out = NULL;
    ch_shape   shape = ch_tensor_shape(t);

    for (int k = 0; k < shape.rank; k++)
        shape.dim[k] = box->size[k];
    assert_int_equal(ch__tensor_region(t, box, &view), CH_OK);
    assert_int_equal(ch_tensor_new(ch_tensor_dtype(t), shape, &out), CH_OK);
    assert_int_equal(ch_tensor_copy(view, out), CH_OK);
    ch_tensor_unref(view);
    return out;
}

static ch_tensor *run(const ch_node *n, ch_tensor *in, int core)
{
    ch_env      env = {.n_replicas = 1, .step = 7, .seed = 5, .core = core};
    const void *data[] = {in != NULL ? ch_tensor_data(in) : NULL};
    ch_tensor  *out = NULL;
    void       *to;

    assert_int_equal(ch_tensor_new(n->dtype, ch__shape(n), &out), CH_OK);
    to = ch_tensor_data_mut(out);
    assert_int_equal(ch__call_run(n, ch__kernel_for(n), data, &to, &env, NULL), CH_OK);
    return out;
}

static void boxes_are_those_of_the_whole(ch_node *call)
{
    ch_shape   shape = ch__shape(call);
    ch_tensor *in = NULL, *whole;

    if (call->n_in > 0) {
        assert_int_equal(ch_tensor_new(call->dtype, shape, &in), CH_OK);
        memset(ch_tensor_data_mut(in), 0x3c, ch_tensor_bytes(in)); /* a finite number */
    }
    whole = run(call, in, 0);
    for (int i = 0; i < 20; i++) {
        ch_region  box;
        int        core = (int)below(3);
        ch_tensor *want, *part, *got;
        ch_node   *n;

        for (int k = 0; k < shape.rank; k++) {
            int64_t how = below(4);

            box.begin[k] = how == 0 ? 0 : below(shape.dim[k]);
            box.size[k] = how == 0   ? shape.dim[k]
                          : how == 1 ? 1
                                     : 1 + below(shape.dim[k] - box.begin[k]);
        }
        n = part_of(call, &box, core);
        want = cut(whole, &box);
        part = in != NULL ? cut(in, &box) : NULL;
        got = run(n, part, core);
        assert_memory_equal(ch_tensor_data(got), ch_tensor_data(want), ch_tensor_bytes(want));
        ch_tensor_unref(want);
        ch_tensor_unref(part);
        ch_tensor_unref(got);
    }
    ch_tensor_unref(in);
    ch_tensor_unref(whole);
}

static const ch_shape shapes[] = {{1, {5000}}, {2, {70, 65}}, {4, {3, 41, 7, 5}}, {0, {0}}};
enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

static void box_of_random_numbers_has_the_bits_of_the_whole(void **state)
{
    static const ch_dtype floats[] = {CH_F32, CH_F64, CH_BF16, CH_F16};
    static const ch_dtype whole[] = {CH_I8, CH_U8, CH_I32, CH_I64};
    ch_step              *s = new_step();

    (void)state;
    for (int i = 0; i < N_SHAPES; i++)
        for (int d = 0; d < 4; d++) {
            boxes_are_those_of_the_whole(ch_random_uniform(s, floats[d], shapes[i], -1, 3, 9));
            boxes_are_those_of_the_whole(ch_random_normal(s, floats[d], shapes[i], 0, 1, 9));
            boxes_are_those_of_the_whole(ch_truncated_normal(s, floats[d], shapes[i], 0, 1, 9));
            boxes_are_those_of_the_whole(ch_bernoulli(s, floats[d], shapes[i], 0.3, 9));
            boxes_are_those_of_the_whole(ch_random_integers(s, whole[d], shapes[i], 0, 100, 9));
        }
    boxes_are_those_of_the_whole(
        ch_random_integers(s, CH_I64, shapes[1], INT64_MIN, INT64_MAX, 9)); /* four words */
    ch__step_free(s);
}

static void box_of_dropout_has_the_mask_of_the_whole(void **state)
{
    static const ch_dtype floats[] = {CH_F32, CH_F64, CH_BF16, CH_F16};
    ch_step              *s = new_step();

    (void)state;
    for (int i = 0; i < N_SHAPES; i++)
        for (int d = 0; d < 4; d++) {
            ch_dims  dims = ch__dims_of(shapes[i]);
            ch_node *x = ch__step_add_input(s, NULL, floats[d], &dims);

            boxes_are_those_of_the_whole(ch_dropout(x, 0.4, 3));
        }
    ch__step_free(s);
}

/* ---- passes ---- */

/* Records two parts of a range of 8 elements that begin at positions a and b, and runs the
 * passes. Returns the number of calls that remain. */
static int calls_after_passes(int64_t a, int64_t b)
{
    ch_step  *s = new_step();
    ch_node  *whole = ch_range(s, CH_F32, 0, 8, 1), *x, *y;
    ch_graph *g = NULL;
    int       n_calls = 0;

    x = part_of(whole, &(ch_region){{a}, {2}}, 0);
    y = part_of(whole, &(ch_region){{b}, {2}}, 0);
    ch_step_out(s, "x", x);
    ch_step_out(s, "y", y);
    assert_int_equal(ch__step_finish(s, &g), CH_OK);
    g->is_concrete = true;
    assert_int_equal(ch__pass_cse(g), CH_OK);
    assert_int_equal(ch__pass_fold(g), CH_OK);
    for (const ch_node *n = g->first; n != NULL; n = n->next) {
        n_calls++;
        assert_ptr_not_equal(n->op, ch__roles.constant);
    }
    ch__step_free(s);
    ch_graph_unref(g);
    return n_calls;
}

static void equal_parts_are_merged_and_never_folded(void **state)
{
    (void)state;
    assert_int_equal(calls_after_passes(2, 2), 1);
    assert_int_equal(calls_after_passes(2, 4), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(box_of_random_numbers_has_the_bits_of_the_whole),
        cmocka_unit_test(box_of_dropout_has_the_mask_of_the_whole),
        cmocka_unit_test(equal_parts_are_merged_and_never_folded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
