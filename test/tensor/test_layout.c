/* test/tensor/test_layout.c -- layouts: sizes of parts, regions, cutting and joining.
 *
 * The model visits every element. The tests compare it with random layouts, whose axes may have
 * more parts than elements, and let every allocation fail once.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tensor/layout.h"
#include "tensor/tensor.h"

enum { CASES = 400, PARTS = 64 };

static void ok(ch_status rc)
{
    if (rc != CH_OK)
        fail_msg("%s: %s", ch_status_name(rc), ch_error_message());
}

static unsigned draw(unsigned *seed, unsigned below)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % below;
}

/* Returns an i32 tensor in which each element is its own index. */
static ch_tensor *numbered(ch_shape shape)
{
    ch_tensor *t = NULL;

    ok(ch_tensor_new(CH_I32, shape, &t));
    for (int32_t i = 0; i < ch_tensor_count(t); i++)
        ((int32_t *)ch_tensor_data_mut(t))[i] = i;
    return t;
}

static int32_t at(const ch_tensor *t, const int64_t *index)
{
    int64_t k = 0;

    for (int i = 0; i < t->shape.rank; i++)
        k += index[i] * t->stride[i];
    return ((const int32_t *)(const void *)t->data)[k];
}

/* Increments an index, the last axis fastest. Returns false at the end. */
static bool next(ch_shape shape, int64_t *index)
{
    for (int k = shape.rank - 1; k >= 0; k--) {
        if (++index[k] < shape.dim[k])
            return true;
        index[k] = 0;
    }
    return false;
}

static ch_shape random_shape(unsigned *seed)
{
    ch_shape s = {.rank = 1 + (int)draw(seed, 3)};

    for (int k = 0; k < s.rank; k++)
        s.dim[k] = 1 + draw(seed, 6);
    return s;
}

/* Makes a layout of up to 64 parts. An axis may have more parts than elements, so that some
 * parts are empty. */
static ch_layout random_layout(unsigned *seed, int rank)
{
    ch_layout l = {.parts = {0}};

    for (int k = 0; k < rank; k++)
        l.parts[k] = (int)draw(seed, 5);
    return l;
}

static void layout_parts_hold_every_element_once(void **state)
{
    unsigned seed = 1;

    (void)state;
    for (int c = 0; c < CASES; c++) {
        ch_shape   shape = random_shape(&seed);
        ch_layout  l = random_layout(&seed, shape.rank);
        ch_tensor *whole = numbered(shape);
        int        n = ch__layout_parts(l), seen[6 * 6 * 6] = {0};

        for (int i = 0; i < n; i++) {
            ch_tensor *part = NULL;
            ch_region  region;
            int64_t    index[CH_MAX_RANK] = {0};

            ok(ch__layout_cut(l, shape, whole, i, &part));
            ch__layout_region(l, shape, i, &region);
            assert_true(ch_shape_equal(part->shape, ch__layout_shape(l, shape, i)));
            if (ch_tensor_count(part) > 0)
                do {
                    int64_t from[CH_MAX_RANK];

                    for (int k = 0; k < shape.rank; k++)
                        from[k] = region.begin[k] + index[k];
                    assert_int_equal(at(part, index), at(whole, from));
                    seen[at(part, index)]++;
                } while (next(part->shape, index));
            ch_tensor_unref(part);
        }
        for (int64_t i = 0; i < ch_tensor_count(whole); i++)
            assert_int_equal(seen[i], 1);
        ch_tensor_unref(whole);
    }
}

static void layout_parts_join_to_the_whole(void **state)
{
    unsigned seed = 2;

    (void)state;
    for (int c = 0; c < CASES; c++) {
        ch_shape   shape = random_shape(&seed);
        ch_layout  l = random_layout(&seed, shape.rank);
        ch_tensor *whole = numbered(shape), *part[PARTS] = {NULL}, *joined = NULL;

        for (int i = 0; i < ch__layout_parts(l); i++)
            ok(ch__layout_cut(l, shape, whole, i, &part[i]));
        ok(ch__layout_join(l, part, &joined));
        assert_true(ch_shape_equal(joined->shape, shape));
        assert_memory_equal(joined->data, whole->data, ch_tensor_bytes(whole));
        for (int i = 0; i < ch__layout_parts(l); i++)
            ch_tensor_unref(part[i]);
        ch_tensor_unref(joined);
        ch_tensor_unref(whole);
    }
}

/* A bias of shape (4) lies along the last axis of a (6, 4) weight; a (6, 1) column does not. */
static void layout_cut_of_lower_rank_uses_the_axes_of_the_value(void **state)
{
    ch_tensor *bias = numbered(ch_shape_of(4)), *column = numbered(ch_shape_of(6, 1));
    ch_tensor *part = NULL;
    ch_shape   weight = ch_shape_of(6, 4);

    (void)state;
    ok(ch__layout_cut(ch__layout_along(1, 2), weight, bias, 1, &part));
    assert_int_equal(ch_tensor_count(part), 2);
    assert_int_equal(at(part, (int64_t[]){0}), 2);
    ch_tensor_unref(part);
    ok(ch__layout_cut(ch__layout_along(0, 2), weight, bias, 1, &part));
    assert_ptr_equal(part, bias);
    ch_tensor_unref(part);
    ok(ch__layout_cut(ch__layout_along(1, 2), weight, column, 1, &part));
    assert_ptr_equal(part, column);
    ch_tensor_unref(part);
    ch_tensor_unref(bias);
    ch_tensor_unref(column);
}

/* Scalars are equal on all shards: the result is that of the first. */
static void layout_join_uses_the_first_part_along_axes_that_parts_lack(void **state)
{
    ch_tensor *a = numbered(ch_shape_of(3)), *b = numbered(ch_shape_of(3)), *joined = NULL;

    (void)state;
    ok(ch__layout_join(ch__layout_along(1, 2), (ch_tensor *[]){a, b}, &joined));
    assert_ptr_equal(joined, a);
    ch_tensor_unref(joined);
    ch_tensor_unref(a);
    ch_tensor_unref(b);
}

static void layout_join_rejects_parts_of_other_sizes(void **state)
{
    ch_tensor *a = numbered(ch_shape_of(1)), *b = numbered(ch_shape_of(3)), *joined = NULL;

    (void)state;
    assert_int_not_equal(
        ch__layout_join(ch__layout_along(0, 2), (ch_tensor *[]){a, b}, &joined), CH_OK);
    assert_null(joined);
    ch_tensor_unref(a);
    ch_tensor_unref(b);
}

static bool is_inside(const ch_region *b, int rank, const int64_t *index)
{
    for (int k = 0; k < rank; k++)
        if (index[k] < b->begin[k] || index[k] >= b->begin[k] + b->size[k])
            return false;
    return true;
}

static ch_region random_region(unsigned *seed, ch_shape shape)
{
    ch_region b = {.begin = {0}};

    for (int k = 0; k < shape.rank; k++) {
        b.begin[k] = draw(seed, (unsigned)shape.dim[k] + 1);
        b.size[k] = draw(seed, (unsigned)(shape.dim[k] - b.begin[k]) + 1);
    }
    return b;
}

static void region_intersect_has_the_elements_of_both_regions(void **state)
{
    unsigned seed = 3;

    (void)state;
    for (int c = 0; c < CASES; c++) {
        ch_shape  shape = random_shape(&seed);
        ch_region a = random_region(&seed, shape), b = random_region(&seed, shape), both;
        bool      shares = ch__region_intersect(&a, &b, shape.rank, &both), found = false;
        int64_t   index[CH_MAX_RANK] = {0};

        do {
            bool want = is_inside(&a, shape.rank, index) && is_inside(&b, shape.rank, index);

            found |= want;
            if (shares)
                assert_int_equal(is_inside(&both, shape.rank, index), want);
        } while (next(shape, index));
        assert_int_equal(shares, found);
        assert_true(ch__region_fits(&a, shape) && (!shares || ch__region_fits(&both, shape)));
    }
}

static void region_fits_refuses_regions_past_the_end(void **state)
{
    ch_shape shape = ch_shape_of(4, 5);

    (void)state;
    assert_true(ch__region_fits(&(ch_region){{4, 0}, {0, 5}}, shape));
    assert_false(ch__region_fits(&(ch_region){{4, 0}, {1, 5}}, shape));
    assert_false(ch__region_fits(&(ch_region){{-1, 0}, {1, 1}}, shape));
    assert_false(ch__region_fits(&(ch_region){{0, 0}, {1, -1}}, shape));
    assert_false(ch__region_fits(&(ch_region){{1, 0}, {INT64_MAX, 1}}, shape));
}

/* Every allocation of a cut and a join fails once. */
static void layout_cut_and_join_leak_nothing_when_out_of_memory(void **state)
{
    ch_layout l = {.parts = {2, 3}};

    (void)state;
    for (int k = 1;; k++) {
        ch_tensor *whole = numbered(ch_shape_of(4, 5)), *part[6] = {NULL}, *joined = NULL;
        ch_status  rc = CH_OK;

        ch__mem_fail_at(k);
        for (int i = 0; i < 6 && rc == CH_OK; i++)
            rc = ch__layout_cut(l, whole->shape, whole, i, &part[i]);
        if (rc == CH_OK)
            rc = ch__layout_join(l, part, &joined);
        ch__mem_fail_at(0);
        for (int i = 0; i < 6; i++)
            ch_tensor_unref(part[i]);
        ch_tensor_unref(joined);
        ch_tensor_unref(whole);
        if (rc == CH_OK)
            break;
        assert_int_equal(rc, CH_RESOURCE_EXHAUSTED);
    }
}

/* Each piece is compared with the elements that follow in a copy of the region. */
static void region_pieces_are_the_elements_of_the_region_in_order(void **state)
{
    unsigned seed = 7;

    (void)state;
    for (int c = 0; c < CASES; c++) {
        ch_shape   shape = random_shape(&seed);
        ch_tensor *whole = numbered(shape), *view = NULL, *all = NULL;
        ch_region  r = {.begin = {0}};
        int64_t    most = 1 + draw(&seed, 60), n = 1, n_pieces = 0;

        for (int k = 0; k < shape.rank; k++) {
            r.begin[k] = draw(&seed, (unsigned)shape.dim[k]);
            r.size[k] = 1 + draw(&seed, (unsigned)(shape.dim[k] - r.begin[k]));
            n *= r.size[k];
        }
        assert_int_equal(ch__region_count(&r, shape.rank), n);
        ok(ch__tensor_region(whole, &r, &view));
        ok(ch_tensor_contiguous(view, &all));
        for (int64_t done = 0; done < n; n_pieces++) {
            ch_tensor *part = NULL, *piece = NULL;
            ch_region  region;
            int64_t    count = ch__region_piece(&r, shape.rank, most, done, &region);

            assert_in_range(count, 1, most);
            assert_int_equal(ch__region_count(&region, shape.rank), count);
            ok(ch__tensor_region(whole, &region, &part));
            ok(ch_tensor_contiguous(part, &piece));
            assert_memory_equal(piece->data, all->data + done * 4, (size_t)count * 4);
            done += count;
            ch_tensor_unref(part);
            ch_tensor_unref(piece);
        }
        assert_true(n > most || n_pieces == 1);
        ch_tensor_unref(whole);
        ch_tensor_unref(view);
        ch_tensor_unref(all);
    }
    assert_int_equal(ch__region_piece(&(ch_region){.begin = {0}}, 0, 5, 0, &(ch_region){0}), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layout_parts_hold_every_element_once),
        cmocka_unit_test(layout_parts_join_to_the_whole),
        cmocka_unit_test(layout_cut_of_lower_rank_uses_the_axes_of_the_value),
        cmocka_unit_test(layout_join_uses_the_first_part_along_axes_that_parts_lack),
        cmocka_unit_test(layout_join_rejects_parts_of_other_sizes),
        cmocka_unit_test(region_intersect_has_the_elements_of_both_regions),
        cmocka_unit_test(region_fits_refuses_regions_past_the_end),
        cmocka_unit_test(region_pieces_are_the_elements_of_the_region_in_order),
        cmocka_unit_test(layout_cut_and_join_leak_nothing_when_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
