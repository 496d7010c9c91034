/* test/strategy/test_launchers.c -- strategies and ch_fit warn if a launcher started several
 * copies.
 *
 * Every case runs in a child, because the warning is given once in a process and the
 * environment belongs to the process. The parent uses no device, so that the child may.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FAILED = 100, WRONG_TEXT }; /* exit codes; below: the number of warnings */

static int         warnings;
static const char *expected; /* words of the warning */

static void sink(const ch_log_record *r, void *arg)
{
    (void)arg;
    if (r->level != CH_LOG_WARNING || strcmp(r->code, "launcher") != 0)
        return;
    warnings++;
    if (expected != NULL && strstr(r->text, expected) == NULL) {
        fprintf(stderr, "\"%s\" has not \"%s\"\n", r->text, expected);
        _exit(WRONG_TEXT);
    }
}

/* Every strategy for a single process, and training under Default, in the order of `first`. */
enum {
    ONE_DEVICE,
    MIRRORED,
    CENTRAL_STORAGE,
    PARAMETER_SERVER,
    FIT,
    TRAIN_AND_EVALUATE,
    N_KINDS
};

/* Makes a model of the current strategy, which is Default, and evaluates it, which gives no
 * warning. */
static ch_status make_model(ch_data d, ch_model **out)
{
    ch_optimizer *sgd = NULL;
    ch_status     rc = ch_model_new(NULL, ch_layer_dense(1, NULL), NULL, out);

    if (rc == CH_OK)
        rc = ch_optimizer_sgd(0.1, NULL, NULL, &sgd);
    if (rc == CH_OK)
        rc = ch_compile(*out, &(ch_compile_options){.optimizer = sgd, .loss = ch_loss_mse});
    if (rc == CH_OK)
        rc = ch_evaluate(*out, d, NULL, NULL);
    ch_optimizer_unref(sgd);
    return rc;
}

/* Trains a model for a step, without a strategy of its own. */
static ch_status train(int kind)
{
    ch_tensor *t[2] = {t_noise(ch_shape_of(2, 3), 1), t_noise(ch_shape_of(2, 1), 2)};
    ch_data    d = {.n = 2, .array = t};
    ch_model  *m = NULL;
    int        before = warnings;
    ch_status  rc = make_model(d, &m);

    if (rc == CH_OK && warnings != before)
        rc = ch_fail(CH_INTERNAL, "a warning before the training");
    if (rc == CH_OK)
        rc =
            kind == FIT ? ch_fit(m, d, NULL, NULL) : ch_train_and_evaluate(m, d, d, NULL, NULL);
    ch_model_unref(m);
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    return rc;
}

static ch_status make(int kind, ch_strategy **out)
{
    ch_local_cluster *c = NULL;
    ch_status         rc;

    *out = NULL;
    switch (kind) {
    case FIT:
    case TRAIN_AND_EVALUATE:
        return train(kind);
    case ONE_DEVICE:
        return ch_strategy_one_device("CPU:0", out);
    case MIRRORED:
        return ch_strategy_mirrored(NULL, out);
    case CENTRAL_STORAGE:
        return ch_strategy_central_storage(NULL, out);
    default:
        rc = ch_cluster_local(&(ch_local_cluster_options){.ps = 1, .workers = 1}, &c);
        if (rc == CH_OK)
            rc = ch_strategy_parameter_server(ch_local_cluster_resolver(c), NULL, out);
        ch_local_cluster_unref(c);
        return rc;
    }
}

/* Returns the number of warnings in a process that has these environment variables (the list
 * ends with NULL) and creates the `first` kind of strategy, then all kinds. */
static int warnings_with(const char *const *variable, int first, const char *words)
{
    pid_t id = fork();
    int   status = 0;

    if (id == 0) {
        ch_strategy *st = NULL;

        expected = words;
        ch_log_set_sink(sink, NULL, CH_LOG_WARNING);
        for (; *variable != NULL; variable += 2)
            setenv(variable[0], variable[1], 1);
        for (int i = -1; i < N_KINDS; i++) {
            if (make(i < 0 ? first : i, &st) != CH_OK) {
                fprintf(stderr, "%s\n", ch_error_message());
                _exit(FAILED);
            }
            ch_strategy_unref(st);
            if (i < 0 && words != NULL && warnings != 1)
                _exit(FAILED); /* the first strategy did not warn */
        }
        _exit(warnings);
    }
    assert_true(id > 0 && waitpid(id, &status, 0) == id);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

#define WITH(...)                                                                              \
    (const char *const[])                                                                      \
    {                                                                                          \
        __VA_ARGS__, NULL                                                                      \
    }

static void launcher_warning_names_the_launcher_and_the_copies(void **state)
{
    (void)state;
    assert_int_equal(
        warnings_with(WITH("RANK", "1", "WORLD_SIZE", "2"), MIRRORED,
                      "strategy Mirrored: torchrun started 2 copies of this program "
                      "(this is rank 1)"),
        1);
    assert_int_equal(
        warnings_with(WITH("OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_SIZE", "3"),
                      ONE_DEVICE, "strategy OneDevice: Open MPI started 3 copies"),
        1);
    assert_int_equal(warnings_with(WITH("PMI_RANK", "0", "PMI_SIZE", "2"), CENTRAL_STORAGE,
                                   "strategy CentralStorage: PMI started 2 copies"),
                     1);
    assert_int_equal(warnings_with(WITH("SLURM_PROCID", "7", "SLURM_STEP_NUM_TASKS", "8"),
                                   PARAMETER_SERVER,
                                   "strategy ParameterServer: Slurm started 8 copies"),
                     1);
}

static void launcher_warning_comes_from_fit_when_the_strategy_is_default(void **state)
{
    (void)state;
    assert_int_equal(
        warnings_with(WITH("OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "2"), FIT,
                      "strategy Default: Open MPI started 2 copies of this program "
                      "(this is rank 1)"),
        1);
    assert_int_equal(warnings_with(WITH("RANK", "0", "WORLD_SIZE", "2"), TRAIN_AND_EVALUATE,
                                   "strategy Default: torchrun started 2 copies"),
                     1);
    assert_int_equal(warnings_with(WITH("SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "2"), FIT,
                                   "strategy Default: Slurm started 2 copies"),
                     1);
}

static void launcher_warning_passes_over_a_launcher_of_one(void **state)
{
    (void)state;
    assert_int_equal(warnings_with(WITH("RANK", "0", "WORLD_SIZE", "1", "SLURM_PROCID", "1",
                                        "SLURM_STEP_NUM_TASKS", "4"),
                                   MIRRORED, "Slurm started 4 copies"),
                     1);
}

static void launcher_warning_is_left_out_when_the_process_is_alone(void **state)
{
    (void)state;
    assert_int_equal(warnings_with(WITH("RANK", "0", "WORLD_SIZE", "1"), MIRRORED, NULL), 0);
    assert_int_equal(warnings_with(WITH("WORLD_SIZE", "2"), MIRRORED, NULL), 0);
    /* salloc: an allocation for two tasks without a step. sbatch: a rank without a step. */
    assert_int_equal(
        warnings_with(WITH("SLURM_JOB_ID", "9", "SLURM_NTASKS", "2"), MIRRORED, NULL), 0);
    assert_int_equal(
        warnings_with(WITH("SLURM_PROCID", "0", "SLURM_NTASKS", "2"), MIRRORED, NULL), 0);
    assert_int_equal(
        warnings_with(WITH("TF_CONFIG", "{\"cluster\": {\"worker\": [\"a:1\", \"b:1\"]}, "
                                        "\"task\": {\"type\": \"worker\", \"index\": 0}}"),
                      MIRRORED, NULL),
        0);
    assert_int_equal(warnings_with(WITH("RANK", "one", "WORLD_SIZE", "two"), MIRRORED, NULL),
                     0);
}

/* This test may itself run under a launcher. */
static int setup(void **state)
{
    static const char *const name[] = {
        "RANK",         "WORLD_SIZE",           "PMI_RANK",  "PMI_SIZE",
        "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "TF_CONFIG", "OMPI_COMM_WORLD_RANK",
        "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"};

    (void)state;
    for (size_t i = 0; i < sizeof(name) / sizeof(name[0]); i++)
        unsetenv(name[i]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launcher_warning_names_the_launcher_and_the_copies),
        cmocka_unit_test(launcher_warning_comes_from_fit_when_the_strategy_is_default),
        cmocka_unit_test(launcher_warning_passes_over_a_launcher_of_one),
        cmocka_unit_test(launcher_warning_is_left_out_when_the_process_is_alone),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
