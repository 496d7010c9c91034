/* test/spmd/test_layout.c -- layouts of values over cores.
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
#include "spmd/layout.h"

static void ok(ch_status rc)
{
    if (rc != CH_OK)
        fail_msg("%s: %s", ch_status_name(rc), ch_error_message());
}

static ch_core_layout split_by(int n_cores, int a, int b)
{
    ch_core_layout l;

    ch__layout_split(n_cores, 2, (int[]){a, b}, &l);
    return l;
}

static ch_core_layout over_mesh(int a, int b)
{
    ch_core_layout l;

    ok(ch__layout_over_mesh("x", 2, (int[]){2, 3}, 2, (int[]){a, b}, &l));
    return l;
}

static ch_core_layout on_core(int n_cores, int core)
{
    ch_core_layout l;

    ch__layout_on_core(n_cores, 2, core, &l);
    return l;
}

static ch_core_layout replicated(int n_cores)
{
    ch_core_layout l;

    ch__layout_replicated(n_cores, 2, &l);
    return l;
}

/* Makes a layout partial: core c has result c % n. */
static ch_core_layout partial(ch_core_layout l, int n, ch_partial_op op)
{
    l.n_partial = n;
    l.combiner = op;
    for (int c = 0; c < l.n_cores; c++)
        l.partial[c] = (unsigned char)(c % n);
    return l;
}

/* ---- unique layouts ---- */

static void layout_table_returns_one_pointer_for_equal_layouts(void **state)
{
    ch_layout_table      *t = NULL;
    const ch_core_layout *p[7], *q;
    ch_core_layout        l[7], l0 = split_by(4, 4, 1);

    (void)state;
    l[0] = l0;
    l[1] = split_by(4, 1, 4);
    l[2] = split_by(4, 2, 2);
    l[3] = replicated(4);
    l[4] = on_core(4, 2);
    l[5] = partial(replicated(4), 4, CH_PARTIAL_MAX);
    l[6] = partial(replicated(4), 4, CH_PARTIAL_SUM);
    ok(ch__layout_table_new(4, &t));
    for (int i = 0; i < 7; i++) {
        ok(ch__layout_intern(t, &l[i], &p[i]));
        for (int j = 0; j < i; j++)
            assert_ptr_not_equal(p[i], p[j]);
    }
    for (int i = 0; i < 7; i++) {
        ok(ch__layout_intern(t, &l[i], &q));
        assert_ptr_equal(p[i], q);
        ok(ch__layout_intern(t, p[i], &q));
        assert_ptr_equal(p[i], q);
    }
    /* members without meaning do not count */
    l0.unit[1] = 7;
    l0.combiner = CH_PARTIAL_AND;
    l0.part[5][3] = 1;
    ok(ch__layout_intern(t, &l0, &q));
    assert_ptr_equal(q, p[0]);
    l[4].part[1][0] = 9; /* core 0 has no part */
    ok(ch__layout_intern(t, &l[4], &q));
    assert_ptr_equal(q, p[4]);
    l0.unit[0] = 7;
    ok(ch__layout_intern(t, &l0, &q));
    assert_ptr_not_equal(q, p[0]);
    ch__layout_table_free(t);
    ch__layout_table_free(NULL);
}

static void layout_table_reports_failed_allocations(void **state)
{
    ch_core_layout l = split_by(4, 4, 1);
    ch_status      rc = CH_RESOURCE_EXHAUSTED;
    int            n = 0;

    (void)state;
    while (rc != CH_OK) {
        ch_layout_table      *t = NULL;
        const ch_core_layout *p = NULL;

        ch__mem_fail_at(++n);
        rc = ch__layout_table_new(4, &t);
        if (rc == CH_OK)
            rc = ch__layout_intern(t, &l, &p);
        ch__mem_fail_at(0);
        assert_true(rc == CH_OK || (rc == CH_RESOURCE_EXHAUSTED && p == NULL));
        ch__layout_table_free(t);
    }
    assert_true(n > 2);
}

/* ---- regions ---- */

/* TPU-4.1, TPU-4.9: parts are as even as possible. */
static void layout_regions_are_even_parts(void **state)
{
    ch_core_layout l = split_by(8, 4, 2);
    ch_shape       s = ch_shape_of(10, 1);
    ch_region      r;
    const int      begin[] = {0, 3, 6, 8}, size[] = {3, 3, 2, 2};

    (void)state;
    for (int c = 0; c < 8; c++) {
        assert_true(ch__core_region(&l, s, c, &r));
        assert_int_equal(r.begin[0], begin[c / 2]);
        assert_int_equal(r.size[0], size[c / 2]);
        assert_int_equal(r.size[1], c % 2 == 0); /* the second part of one column is empty */
    }
    l = on_core(8, 5);
    assert_false(ch__core_region(&l, s, 4, &r));
    assert_true(ch__core_region(&l, s, 5, &r));
    assert_int_equal(ch__region_count(&r, 2), 10);
}

static void layout_units_are_not_divided(void **state)
{
    ch_core_layout l;
    const int      end[] = {8, 16, 24, 28};
    int64_t        from, to;

    (void)state;
    ch__layout_split(4, 1, (int[]){4}, &l);
    l.unit[0] = 4;
    for (int i = 0; i < 4; i++) {
        ch__core_part(&l, 0, 28, i, &from, &to);
        assert_int_equal(from, i == 0 ? 0 : end[i - 1]);
        assert_int_equal(to, end[i]);
    }
    ch__core_part(&l, 0, 6, 1, &from, &to); /* the last unit is short */
    assert_int_equal(from, 4);
    assert_int_equal(to, 6);
    ch__core_part(&l, 0, 6, 3, &from, &to);
    assert_int_equal(from, to);
}

static void layout_over_mesh_numbers_cores_in_row_major_order(void **state)
{
    ch_core_layout l = over_mesh(1, 0);

    (void)state;
    assert_int_equal(l.n_cores, 6);
    assert_int_equal(l.parts[0], 3);
    assert_int_equal(l.parts[1], 2);
    for (int c = 0; c < 6; c++) {
        assert_int_equal(l.part[0][c], c % 3);
        assert_int_equal(l.part[1][c], c / 3);
    }
    l = over_mesh(CH_OFF, 0); /* axis 1 of the mesh holds copies */
    assert_int_equal(l.parts[0], 1);
    for (int c = 0; c < 6; c++)
        assert_int_equal(l.part[1][c], c / 3);
    l = over_mesh(CH_OFF, CH_MESH_ALL);
    assert_int_equal(l.parts[1], 6);
    for (int c = 0; c < 6; c++)
        assert_int_equal(l.part[1][c], c);
    assert_true(ch__layout_is_covered(&l));
}

static void layout_over_mesh_rejects_axes(int a, int b, const char *text)
{
    ch_core_layout l;

    assert_int_equal(
        ch__layout_over_mesh("ch_mesh_split: x", 2, (int[]){2, 3}, 2, (int[]){a, b}, &l),
        CH_INVALID_ARGUMENT);
    if (strstr(ch_error_message(), text) == NULL)
        fail_msg("%s", ch_error_message());
}

static void layout_over_mesh_rejects_wrong_axes(void **state)
{
    (void)state;
    layout_over_mesh_rejects_axes(0, 2, "ch_mesh_split: x: axis 1 is split over mesh axis 2");
    layout_over_mesh_rejects_axes(-3, 0, "axis 0 is split over mesh axis -3");
    layout_over_mesh_rejects_axes(1, 1, "mesh axis 1 occurs twice, for axes 0 and 1");
    layout_over_mesh_rejects_axes(1, CH_MESH_ALL, "mesh axis 1 occurs twice");
    layout_over_mesh_rejects_axes(CH_MESH_ALL, CH_MESH_ALL, "mesh axis 0 occurs twice");
}

/* ---- comparison and combination ---- */

/* Returns true if every core's region in `fine` lies in its region in `coarse`, for all sizes
 * up to 12 by 12. */
static bool lies_inside(const ch_core_layout *fine, const ch_core_layout *coarse)
{
    for (int i = 0; i < 12 * 12; i++) {
        ch_shape s = ch_shape_of(1 + i % 12, 1 + i / 12);

        for (int c = 0; c < fine->n_cores; c++) {
            ch_region a, b, both;

            if (!ch__core_region(fine, s, c, &a) || ch__region_count(&a, 2) == 0)
                continue;
            if (!ch__core_region(coarse, s, c, &b) || !ch__region_intersect(&a, &b, 2, &both) ||
                memcmp(&a, &both, sizeof(a)) != 0)
                return false;
        }
    }
    return true;
}

static void layout_refines_when_regions_lie_inside_for_every_size(void **state)
{
    ch_core_layout l[12];
    int            n = 0, n_true = 0;

    (void)state;
    l[n++] = replicated(6);
    l[n++] = split_by(6, 6, 1);
    l[n++] = split_by(6, 2, 3);
    l[n++] = split_by(6, 3, 2);
    l[n++] = over_mesh(0, CH_OFF);
    l[n++] = over_mesh(1, CH_OFF);
    l[n++] = over_mesh(CH_OFF, 0);
    l[n++] = over_mesh(1, 0);
    l[n++] = on_core(6, 0);
    l[n++] = on_core(6, 5);
    l[n] = split_by(6, 6, 1);
    l[n++].unit[0] = 2;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            assert_true(ch__layout_refines(&l[i], &l[j]) == lies_inside(&l[i], &l[j]));
            n_true += ch__layout_refines(&l[i], &l[j]);
        }
    }
    assert_true(n_true > 2 * n);
    l[1] = partial(l[0], 6, CH_PARTIAL_SUM);
    assert_false(ch__layout_refines(&l[1], &l[0]));
    assert_false(ch__layout_refines(&l[0], &l[1]));
}

/* TPU-5.2: layouts of two values together. */
static void layout_merge_intersects_parts(void **state)
{
    ch_core_layout rows = over_mesh(0, CH_OFF), columns = over_mesh(CH_OFF, 1), both, out;
    ch_core_layout other = over_mesh(1, CH_OFF),
                   sum = partial(replicated(6), 3, CH_PARTIAL_MIN);
    ch_shape s = ch_shape_of(7, 8);

    (void)state;
    assert_true(ch__layout_merge(&rows, &columns, &both));
    assert_int_equal(both.parts[0], 2);
    assert_int_equal(both.parts[1], 3);
    for (int c = 0; c < 6; c++) {
        ch_region a, b, r, want;

        ch__core_region(&rows, s, c, &a);
        ch__core_region(&columns, s, c, &b);
        ch__region_intersect(&a, &b, 2, &want);
        ch__core_region(&both, s, c, &r);
        assert_memory_equal(&r, &want, sizeof(r));
    }
    assert_true(ch__layout_merge(&rows, &rows, &out));
    assert_false(ch__layout_merge(&rows, &other, &out)); /* two ways to split an axis */
    other = over_mesh(CH_OFF, 0);
    /* rows and columns over the same axis of the mesh: quarters on no core */
    assert_false(ch__layout_merge(&rows, &other, &out));
    other = rows;
    other.unit[0] = 2;
    assert_false(ch__layout_merge(&rows, &other, &out));
    /* partial results: in each row part there are three */
    assert_true(ch__layout_merge(&rows, &sum, &out));
    assert_int_equal(out.n_partial, 3);
    assert_int_equal(out.combiner, CH_PARTIAL_MIN);
    assert_int_equal(out.partial[4], 1);
    assert_false(ch__layout_merge(&columns, &sum, &out));
    assert_false(ch__layout_merge(&sum, &sum, &out));
    /* values on one core */
    rows = on_core(6, 2);
    other = replicated(6);
    assert_true(ch__layout_merge(&rows, &other, &out));
    assert_int_equal(out.cores, 4);
    other = on_core(6, 3);
    assert_false(ch__layout_merge(&rows, &other, &out));
}

static void layout_project_keeps_named_axes(void **state)
{
    ch_core_layout l = over_mesh(0, 1), out;

    (void)state;
    l = partial(l, 1, CH_PARTIAL_SUM);
    l.unit[1] = 5;
    ch__layout_project(&l, 3, (int[]){1, -1, -1}, &out);
    assert_int_equal(out.rank, 3);
    assert_int_equal(out.parts[0], 3);
    assert_int_equal(out.unit[0], 5);
    assert_int_equal(out.parts[1], 1);
    for (int c = 0; c < 6; c++)
        assert_int_equal(out.part[0][c], c % 3);
    ch__layout_project(&l, 0, NULL, &out);
    assert_true(ch__layout_is_replicated(&out));
    l = partial(replicated(6), 6, CH_PARTIAL_SUM);
    ch__layout_project(&l, 1, (int[]){0}, &l); /* in place */
    assert_true(ch__layout_is_replicated(&l));
}

/* ---- print ---- */

static void prints(ch_core_layout l, const char *want)
{
    char text[200], cut[8];
    int  n = ch__core_layout_print(&l, text, sizeof(text));

    assert_string_equal(text, want);
    assert_int_equal(n, strlen(want));
    assert_int_equal(ch__core_layout_print(&l, cut, sizeof(cut)), n);
    assert_memory_equal(cut, want, strlen(cut));
}

static void layout_prints_its_form(void **state)
{
    ch_core_layout l = split_by(4, 1, 4);

    (void)state;
    prints(replicated(4), "replicated");
    prints(split_by(4, 4, 1), "{4, 1}");
    prints(over_mesh(0, CH_OFF), "{2, 1} in 3 copies");
    prints(partial(replicated(4), 4, CH_PARTIAL_SUM), "partial sum of 4");
    prints(partial(over_mesh(0, CH_OFF), 3, CH_PARTIAL_MAX), "{2, 1}, partial max of 3");
    prints(partial(replicated(4), 2, CH_PARTIAL_AND), "partial and of 2 in 2 copies");
    prints(on_core(4, 2), "on core 2");
    prints(over_mesh(1, 0), "{3, 2} on cores 0, 3, 1, 4, 2, 5");
    l.unit[1] = 8;
    prints(l, "{1, 4} in parts of 8");
    l = replicated(4);
    l.cores = 5;
    prints(l, "on cores 0, 2");
    l = replicated(1);
    prints(l, "replicated");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layout_table_returns_one_pointer_for_equal_layouts),
        cmocka_unit_test(layout_table_reports_failed_allocations),
        cmocka_unit_test(layout_regions_are_even_parts),
        cmocka_unit_test(layout_units_are_not_divided),
        cmocka_unit_test(layout_over_mesh_numbers_cores_in_row_major_order),
        cmocka_unit_test(layout_over_mesh_rejects_wrong_axes),
        cmocka_unit_test(layout_refines_when_regions_lie_inside_for_every_size),
        cmocka_unit_test(layout_merge_intersects_parts),
        cmocka_unit_test(layout_project_keeps_named_axes),
        cmocka_unit_test(layout_prints_its_form),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
