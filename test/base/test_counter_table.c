/* test/base/test_counter_table.c -- a visit of the counter table reads every row and its value.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/counter_table.h"
#include "base/mem.h"
#include "tensor/device.h"

/* The names of all rows in the order of a visit, and the values of two rows. */
typedef struct visit {
    char    names[2048];
    int64_t blocks, device_bytes;
    int     n_devices;
} visit;

static void note(void *arg, const ch_counter_row *row, int64_t value)
{
    visit *v = arg;
    size_t n = strlen(v->names);

    assert_true(row->unit != NULL && row->help != NULL);
    assert_int_equal(strspn(row->name, "abcdefghijklmnopqrstuvwxyz0123456789_"),
                     strlen(row->name));
    snprintf(v->names + n, sizeof(v->names) - n, "%s ", row->name);
    if (strcmp(row->name, "memory_blocks") == 0)
        v->blocks = value;
    if (strcmp(row->name, "device_bytes") == 0) {
        assert_non_null(row->label);
        v->device_bytes += value;
        v->n_devices++;
    }
}

static visit visit_all(void)
{
    visit v = {0};

    ch__counter_rows_visit(note, &v);
    return v;
}

static int64_t read_number(void *arg)
{
    return *(const int64_t *)arg;
}

static ch_counter_row row_of(const char *name, int64_t *number)
{
    return (ch_counter_row){
        .name = name, .unit = "things", .help = "things", .read = read_number, .arg = number};
}

static void counter_table_has_the_memory_of_the_process(void **state)
{
    visit v = visit_all();
    void *p = ch__malloc(10);

    assert_int_equal(visit_all().blocks, v.blocks + 1);
    ch__free(p);
    assert_int_equal(strncmp(v.names, "memory_blocks memory_allocations ", 33), 0);
    (void)state;
}

static void counter_table_visits_rows_in_the_order_they_were_added(void **state)
{
    int64_t        one = 1;
    ch_counter_row a = row_of("test_a", &one), b = row_of("test_b", &one),
                   c = row_of("test_c", &one);

    ch__counter_row_add(&a);
    ch__counter_row_add(&b);
    ch__counter_row_add(&c);
    assert_non_null(strstr(visit_all().names, "test_a test_b test_c "));
    ch__counter_row_remove(&b);
    assert_non_null(strstr(visit_all().names, "test_a test_c "));
    ch__counter_row_add(&b);
    ch__counter_row_remove(&a);
    assert_non_null(strstr(visit_all().names, "test_c test_b "));
    ch__counter_row_remove(&b);
    ch__counter_row_remove(&c);
    assert_null(strstr(visit_all().names, "test_"));
    (void)state;
}

static void counter_table_has_a_row_for_each_device(void **state)
{
    ch_device *d = ch_device_at(0);
    visit      v = visit_all();
    void      *p;

    assert_non_null(d);
    assert_int_equal(v.n_devices, ch_device_count(NULL));
    p = ch__device_alloc(d, 1000);
    assert_int_equal(visit_all().device_bytes, v.device_bytes + 1000);
    ch__device_free(d, p, 1000);
    ch__devices_reset();
    assert_int_equal(visit_all().n_devices, 0);
    (void)state;
}

static atomic_bool is_over;

/* Adds a row whose number is in its own block. Frees the block as soon as the row is
 * removed. */
static void *come_and_go(void *arg)
{
    while (!atomic_load(&is_over)) {
        int64_t       *number = calloc(1, sizeof(*number));
        ch_counter_row row = row_of("test_thread", number);

        ch__counter_row_add(&row);
        ch__counter_row_remove(&row);
        free(number);
    }
    return arg;
}

static void counter_table_reads_no_row_after_its_removal(void **state)
{
    pthread_t thread[2];

    atomic_store(&is_over, false);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, come_and_go, NULL), 0);
    for (int i = 0; i < 2000; i++)
        (void)visit_all();
    atomic_store(&is_over, true);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    assert_null(strstr(visit_all().names, "test_"));
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counter_table_has_the_memory_of_the_process),
        cmocka_unit_test(counter_table_visits_rows_in_the_order_they_were_added),
        cmocka_unit_test(counter_table_has_a_row_for_each_device),
        cmocka_unit_test(counter_table_reads_no_row_after_its_removal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
