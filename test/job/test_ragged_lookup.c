/* test/job/test_ragged_lookup.c -- steps that gather rows of a table on parameter servers by
 * ragged ids: the programs of the worker fit many sizes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

#include "../strategy/ragged_model.h"

/* Counts warnings about programs of the model with room, and of the model with exact sizes. The
 * parts of a step are named "room part i". A part that is planned for each size causes a warning
 * with its tenth program. */
static void count_warnings(const ch_log_record *r, void *arg)
{
    if (strcmp(r->code, "program-cache") == 0)
        ((int *)arg)[strstr(r->text, "room part") == NULL]++;
}

static void check_servers(int devices, bool has_two_lists, int steps)
{
    const ch_local_cluster_options local = {.ps = 2, .workers = 1, .devices = devices};
    ch_strategy *st[] = {t_cluster(&local, NULL, NULL), t_cluster(&local, NULL, NULL)};
    int          warnings[2] = {0};

    ch_log_set_sink(count_warnings, warnings, CH_LOG_WARNING);
    (void)train_both(st, devices, has_two_lists, steps, 420);
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
    assert_int_equal(warnings[0], 0);
    assert_in_range(warnings[1], 1, 100);
    ch_strategy_unref(st[0]);
    ch_strategy_unref(st[1]);
}

static void lookup_by_ragged_ids_trains_as_with_exact_sizes(void **state)
{
    for (int devices = 1; devices <= 2; devices++)
        check_servers(devices, false, 30);
    (void)state;
}

static void lookup_by_ragged_ids_trains_as_with_exact_sizes_when_room_is_nan(void **state)
{
    ch__room_poison(true);
    for (int devices = 1; devices <= 2; devices++)
        check_servers(devices, false, 30);
    ch__room_poison(false);
    (void)state;
}

static void two_ragged_lookups_train_as_with_exact_sizes(void **state)
{
    check_servers(2, true, 30);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lookup_by_ragged_ids_trains_as_with_exact_sizes),
        cmocka_unit_test(lookup_by_ragged_ids_trains_as_with_exact_sizes_when_room_is_nan),
        cmocka_unit_test(two_ragged_lookups_train_as_with_exact_sizes),
    };

    return cmocka_run_group_tests(tests, t_four_gpus, NULL);
}
