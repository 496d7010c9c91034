/* test/data/test_autoshard.c -- the log shows how data is divided among workers, and warns if
 * workers repeat the same work.
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/data.h"
#include "pipeline.h"

static int  warnings, infos;
static char text[512];    /* of the last record */
static char warning[512]; /* of the last warning */

static void sink(const ch_log_record *r, void *arg)
{
    (void)arg;
    if (strcmp(r->code, "autoshard") != 0)
        return;
    *(r->level == CH_LOG_WARNING ? &warnings : &infos) += 1;
    snprintf(text, sizeof(text), "%s", r->text);
    if (r->level == CH_LOG_WARNING)
        snprintf(warning, sizeof(warning), "%s", r->text);
}

static int setup(void **state)
{
    (void)state;
    warnings = infos = 0;
    ch_log_set_sink(sink, NULL, CH_LOG_INFO);
    return 0;
}

static void double_it(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_add(ch_step_in(s, 0), ch_step_in(s, 0)));
}

static ch_dataset *mapped(void)
{
    return ch_dataset_batch(ch_dataset_map(ch_dataset_range(0, 32, 1), double_it, NULL, NULL),
                            4, NULL);
}

static void distribute(ch_dataset *d, int n_workers)
{
    for (int i = 0; i < n_workers; i++) {
        ch_dataset *own = NULL;

        t_ok(ch_dataset_distribute(d,
                                   &(ch_input_context){.n_pipelines = n_workers,
                                                       .pipeline = i,
                                                       .n_replicas = n_workers},
                                   &own));
        ch_dataset_unref(own);
    }
}

static void distribute_warns_once_when_auto_divides_by_element(void **state)
{
    ch_dataset *d = mapped();

    (void)state;
    distribute(d, 1);
    assert_int_equal(warnings, 0);
    distribute(d, 2);
    assert_int_equal(warnings, 1);
    assert_int_equal(infos, 2); /* for the single worker, and for worker 1 */
    distribute(d, 2);           /* again, as for another epoch */
    assert_int_equal(warnings, 1);
    ch_dataset_unref(d);
}

static void distribute_warning_names_policy_reason_and_remedy(void **state)
{
    ch_dataset *d = mapped(), *own = NULL;

    (void)state;
    t_ok(ch_dataset_distribute(
        d, &(ch_input_context){.n_pipelines = 2, .pipeline = 0, .n_replicas = 2}, &own));
    assert_int_equal(warnings, 1);
    assert_non_null(strstr(text, "worker 0 of 2: policy DATA, because it does not read files"));
    assert_non_null(strstr(text, "every worker reads and maps all data"));
    assert_non_null(strstr(text, "ch_strategy_distribute_datasets_from_function"));
    ch_dataset_unref(own);
    ch_dataset_unref(d);
}

static void distribute_warning_names_the_remedy_when_a_batch_drops_its_remainder(void **state)
{
    const char *const name[] = {"a.txt", "b.txt"};
    ch_dataset *d = ch_dataset_batch(ch_dataset_lines(ch_dataset_file_list(2, name), NULL), 4,
                                     &(ch_batch_options){.drop_remainder = true});

    (void)state;
    distribute(d, 2);
    assert_int_equal(warnings, 1);
    assert_non_null(strstr(warning, "would drop a remainder of its own in batch"));
    assert_non_null(strstr(warning, "drop_remainder unset, or set policy CH_SHARD_FILE"));
    assert_null(strstr(warning, "at least one file"));
    ch_dataset_unref(d);
}

static void distribute_does_not_warn_when_the_program_chose_the_policy(void **state)
{
    const ch_shard_policy policy[] = {CH_SHARD_DATA, CH_SHARD_OFF};

    (void)state;
    for (int i = 0; i < 2; i++) {
        ch_dataset *d =
            ch_dataset_with_options(mapped(), &(ch_dataset_options){.shard = policy[i]});

        distribute(d, 2);
        assert_int_equal(warnings, 0);
        ch_dataset_unref(d);
    }
}

static void part_warns_once_when_stages_run_on_every_worker(void **state)
{
    const struct {
        ch_dataset *d;
        int         warnings;
    } row[] = {
        {ch_dataset_repeat(mapped(), 2),
         1},           /* the map is below the repeat: all workers run it */
        {mapped(), 0}, /* all workers count, and each maps its own numbers */
    };

    (void)state;
    for (size_t r = 0; r < sizeof(row) / sizeof(row[0]); r++) {
        warnings = 0;
        for (int i = 0; i < 4; i++) {
            ch_dataset *part = NULL;

            t_ok(ch__dataset_part(row[r].d, 2, (i + 1) % 2, &part)); /* worker 1 is first */
            ch_dataset_unref(part);
        }
        assert_int_equal(warnings, row[r].warnings);
        ch_dataset_unref(row[r].d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(distribute_warns_once_when_auto_divides_by_element, setup),
        cmocka_unit_test_setup(distribute_warning_names_policy_reason_and_remedy, setup),
        cmocka_unit_test_setup(
            distribute_warning_names_the_remedy_when_a_batch_drops_its_remainder, setup),
        cmocka_unit_test_setup(distribute_does_not_warn_when_the_program_chose_the_policy,
                               setup),
        cmocka_unit_test_setup(part_warns_once_when_stages_run_on_every_worker, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
