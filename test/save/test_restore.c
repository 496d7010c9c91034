/* test/save/test_restore.c -- which value an object gets, and when: rules of restoring.
 *
 * The objects of most tests are variables of a small model, which are created by its first step
 * ("lazy"), or variables of the strategies with several copies.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <sys/stat.h>

#include "ckpt/ckpt.h"
#include "cohort/checkpoint_reader.h"
#include "help.h"

static const ch_write_options quick = {.wait = true, .sync = CH_OFF, .replace = true};

static ch_var *new_var(const char *name, float value)
{
    return t_var(NULL, name, t_f32(ch_shape_of(1), &value));
}

static float value_of(ch_var *v)
{
    return t_copy_of(v, 0, 0);
}

static void set_value(ch_var *v, float value)
{
    ch_tensor *t = t_f32(ch_var_shape(v), NULL);

    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        ((float *)ch_tensor_data_mut(t))[i] = value;
    t_ok(ch_var_set(v, t));
    ch_tensor_unref(t);
}

/* ---- calls in a step ---- */

typedef struct calls {
    ch_checkpoint *c;
    ch_status      save, write, restore;
} calls;

static void call_all(ch_step *s, void *arg)
{
    calls *x = arg;

    x->save = ch_checkpoint_save(x->c, t_path("in"), NULL, NULL, 0);
    x->write = ch_checkpoint_write(x->c, t_path("in"), NULL);
    x->restore = ch_checkpoint_restore(x->c, t_path("in"), NULL, NULL);
    ch_step_out(s, "one", ch_number(s, 1));
}

/* CK-4: unlike TensorFlow, Cohort refuses ch_checkpoint_write in a step too */
static void checkpoint_calls_are_refused_in_a_step(void **state)
{
    ch_var      *v = new_var("v", 1);
    calls        x = {.c = NULL};
    ch_function *f = t_function(call_all, &x);

    t_ok(ch_checkpoint_new(&x.c));
    t_ok(ch_checkpoint_add_var(x.c, "v", v));
    t_ok(ch_strategy_run(ch_strategy_current(), f, NULL, NULL));
    assert_int_equal(x.save, CH_FAILED_PRECONDITION);
    assert_int_equal(x.write, CH_FAILED_PRECONDITION);
    assert_int_equal(x.restore, CH_FAILED_PRECONDITION);
    ch_function_unref(f);
    ch_checkpoint_unref(x.c);
    ch_var_unref(v);
    (void)state;
}

/* ---- matching ---- */

/* Saves two objects under the names x and y; they may be the same. */
static void save_pair(const char *name, ch_var *x, ch_var *y)
{
    ch_checkpoint *c = NULL;

    t_ok(ch_checkpoint_new(&c));
    t_ok(ch_checkpoint_add_var(c, "x", x));
    t_ok(ch_checkpoint_add_var(c, "y", y));
    t_ok(ch_checkpoint_write(c, t_path(name), &quick));
    ch_checkpoint_unref(c);
}

static void restore_pair(const char *name, ch_var *x, ch_var *y, ch_status existing)
{
    ch_checkpoint *c = NULL;
    ch_restored   *r = NULL;

    t_ok(ch_checkpoint_new(&c));
    t_ok(ch_checkpoint_add_var(c, "x", x));
    t_ok(ch_checkpoint_add_var(c, "y", y));
    t_ok(ch_checkpoint_restore(c, t_path(name), &(ch_restore_options){.partial = true}, &r));
    assert_int_equal(ch_restored_assert_existing(r), existing);
    ch_restored_unref(r);
    ch_checkpoint_unref(c);
}

/* CK-7 */
static void node_of_the_graph_restores_one_object(void **state)
{
    ch_var    *a = new_var("a", 1), *b = new_var("b", 2);
    t_warnings w;

    save_pair("one", a, a); /* a single object, which two edges lead to */
    set_value(a, 5);
    t_keep_warnings(&w);
    restore_pair("one", a, b, CH_FAILED_PRECONDITION);
    t_show_warnings();
    assert_non_null(strstr(w.text, "\"x\" and \"y\" are one object in the checkpoint"));
    assert_true(value_of(a) == 1 && value_of(b) == 2); /* b stays as it is */

    save_pair("two", a, b);
    set_value(a, 5);
    t_keep_warnings(&w);
    restore_pair("two", a, a, CH_OK); /* two nodes are one object now: the first counts */
    t_show_warnings();
    assert_int_equal(w.n, 0);
    assert_true(value_of(a) == 1);
    ch_var_unref(a);
    ch_var_unref(b);
    (void)state;
}

/* ---- values that wait ---- */

static void forward(ch_step *s, void *arg)
{
    ch_step_out(s, "y", ch_model_call(arg, s, ch_step_in(s, 0), false));
}

/* Creates the variables of a lazy model. */
static void create_vars(ch_model *m)
{
    ch_tensor   *x = t_noise(ch_shape_of(2, WIDTH), 3);
    ch_tuple    *in = t_tuple(1, &x);
    ch_function *f = t_function(forward, m);

    t_ok(ch_strategy_run(ch_model_strategy(m), f, in, NULL));
    ch_function_unref(f);
    ch_tuple_unref(in);
}

static ch_var *first_var(ch_model *m)
{
    ch_var *const *var;

    assert_true(ch_model_vars(m, &var) > 0);
    return var[0];
}

/* Saves a model whose variables all have this value. */
static void save_model(const char *name, float value)
{
    t_job          j;
    ch_var *const *var;
    int            n;

    t_begin(&j, DEFAULT, NULL);
    n = ch_model_vars(j.model, &var);
    for (int i = 0; i < n; i++)
        set_value(var[i], value);
    t_ok(ch_checkpoint_write(j.checkpoint, t_path(name), &quick));
    t_end(&j);
}

/* CK-8: also if the variables are created after both restores */
static void latest_restore_wins(void **state)
{
    static const char *const name[] = {"m1", "m2"};

    save_model("m1", 1);
    save_model("m2", 2);
    for (int order = 0; order < 2; order++)
        for (int is_lazy = 0; is_lazy < 2; is_lazy++) {
            ch_restored *r[2] = {NULL};
            t_job        j;

            t_begin(&j, DEFAULT, &(t_options){.is_lazy = is_lazy});
            for (int i = 0; i < 2; i++)
                t_ok(ch_checkpoint_restore(j.checkpoint, t_path(name[i ^ order]),
                                           &(ch_restore_options){.partial = true}, &r[i]));
            create_vars(j.model);
            assert_true(value_of(first_var(j.model)) == (order == 0 ? 2 : 1));
            ch_restored_unref(r[0]);
            ch_restored_unref(r[1]);
            t_end(&j);
        }
    (void)state;
}

/* 3.7.10: a value that was used as an initial value does not replace a later one */
static void value_that_waits_is_used_once(void **state)
{
    ch_restored *r = NULL;
    t_job        j;

    save_model("m1", 1);
    t_begin(&j, DEFAULT, &(t_options){.is_lazy = true});
    t_ok(ch_checkpoint_restore(j.checkpoint, t_path("m1"),
                               &(ch_restore_options){.partial = true}, &r));
    create_vars(j.model);
    assert_true(value_of(first_var(j.model)) == 1);
    set_value(first_var(j.model), 0);
    create_vars(j.model); /* the variables exist */
    assert_true(value_of(first_var(j.model)) == 0);
    ch_restored_unref(r);
    create_vars(j.model);
    assert_true(value_of(first_var(j.model)) == 0);
    t_end(&j);
    (void)state;
}

/* ---- kinds of variables ---- */

/* Saves, changes and restores a variable twice, and compares the values that the program
 * sees. */
static void change_and_restore(ch_var *v, bool wait)
{
    ch_checkpoint *c = NULL;

    t_ok(ch_checkpoint_new(&c));
    t_ok(ch_checkpoint_add_var(c, "v", v));
    for (int i = 0; i < 2; i++) {
        ch_tensor *before = NULL, *after = NULL;

        set_value(v, 3.25f + (float)i);
        t_ok(ch_var_get(v, &before));
        t_ok(ch_checkpoint_write(
            c, t_path("v"),
            &(ch_write_options){.wait = wait, .sync = CH_OFF, .replace = true}));
        set_value(v, -7);
        t_ok(ch_checkpoint_restore(c, t_path("v"), NULL, NULL));
        t_ok(ch_var_get(v, &after));
        assert_memory_equal(ch_tensor_data(before), ch_tensor_data(after),
                            ch_tensor_bytes(before));
        ch_tensor_unref(before);
        ch_tensor_unref(after);
    }
    ch_checkpoint_unref(c);
}

/* 3.7.6, 3.7.7 */
static void variable_of_every_kind_is_saved_changed_and_restored(void **state)
{
    static const ch_aggregation how[] = {CH_AGGREGATE_MEAN, CH_AGGREGATE_SUM,
                                         CH_AGGREGATE_FIRST};

    for (int kind = 0; kind < STRATEGIES; kind++) {
        ch_local_cluster *cluster = NULL;
        ch_strategy      *st = t_strategy_of(kind, &cluster);

        for (int i = 0; i < 12; i++) {
            ch_var_spec spec = {.name = "v",
                                .shape = ch_shape_of(4),
                                .sync = i % 2 != 0 ? CH_SYNC_ON_READ : CH_SYNC_ON_WRITE,
                                .aggregation = how[i / 2 % 3]};
            ch_var     *v = NULL;

            if (ch_var_new(st, &spec, &v) != CH_OK) {
                assert_true(kind >= SERVERS); /* servers have a single copy */
                continue;
            }
            change_and_restore(v, i >= 6);
            ch_var_unref(v);
        }
        ch_strategy_unref(st);
        ch_local_cluster_unref(cluster);
    }
    (void)state;
}

/* ---- files ---- */

static int count_files(const char *path)
{
    DIR *d = opendir(path);
    int  n = 0;

    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* SS-1, SS-3, CK-17: unlike in TensorFlow, the program writes the file of each server itself */
static void checkpoint_has_a_data_file_for_each_server(void **state)
{
    struct stat about;
    t_job       j;

    t_begin(&j, SHARDED, NULL);
    t_steps(&j, 1);
    t_ok(ch_checkpoint_write(j.checkpoint, t_path("servers/ckpt"), &quick));
    assert_int_equal(count_files(t_path("servers")), 3); /* nothing temporary is left */
    for (int i = 0; i < 2; i++) {
        char name[64];

        snprintf(name, sizeof(name), "servers/ckpt.data-%05d-of-00002", i);
        assert_int_equal(stat(t_path(name), &about), 0);
        assert_true(about.st_size > 0);
    }
    t_end(&j);
    (void)state;
}

/* CM-15: an evaluator beside the job restores the newest checkpoint. If it has vanished, the
 * evaluator waits for the next. */
static void evaluator_goes_on_when_a_checkpoint_vanishes(void **state)
{
    ch_var        *trained = new_var("v", 1), *v = new_var("v", 0), *own = new_var("own", 0);
    ch_checkpoint *job = NULL, *evaluator = NULL;
    char           path[600] = "", next[600], command[700];
    ch_restored   *r = NULL;

    t_ok(ch_checkpoint_new(&job));
    t_ok(ch_checkpoint_add_var(job, "v", trained));
    t_ok(ch_checkpoint_new(&evaluator));
    t_ok(ch_checkpoint_add_var(evaluator, "v", v));
    t_ok(ch_checkpoint_add_var(evaluator, "own", own)); /* the job does not have it */
    t_ok(ch_checkpoint_save(job, t_path("eval/ckpt"), &quick, NULL, 0));
    t_ok(ch_checkpoint_wait_next(t_path("eval"), NULL, 10, path, sizeof(path)));
    snprintf(command, sizeof(command), "rm %s.*", path);
    assert_int_equal(system(command), 0);
    t_refused(ch_checkpoint_restore(evaluator, path, NULL, NULL), CH_NOT_FOUND, path, "");
    assert_true(value_of(v) == 0);
    set_value(trained, 2);
    t_ok(ch_checkpoint_save(job, t_path("eval/ckpt"), &quick, NULL, 0));
    t_ok(ch_checkpoint_wait_next(t_path("eval"), path, 10, next, sizeof(next)));
    t_ok(ch_checkpoint_restore(evaluator, next, NULL, &r));
    ch_restored_unref(ch_restored_expect_partial(r));
    assert_true(value_of(v) == 2);
    ch_checkpoint_unref(job);
    ch_checkpoint_unref(evaluator);
    ch_var_unref(trained);
    ch_var_unref(v);
    ch_var_unref(own);
    (void)state;
}

/* ---- the second read ---- */

static const char
    *damaged; /* data file of which the next second read damages byte 0; NULL: none */

void __wrap_ch__ckpt_verify_again(ch_ckpt *c, int i);
void __real_ch__ckpt_verify_again(ch_ckpt *c, int i);

/* Linked instead of the function of ckpt/ckpt.h, which a restore calls before it reads a value for
 * the second time. */
void __wrap_ch__ckpt_verify_again(ch_ckpt *c, int i)
{
    FILE *f = damaged != NULL ? fopen(damaged, "r+b") : NULL;

    if (f != NULL) {
        fputc(0x55, f);
        fclose(f);
    }
    __real_ch__ckpt_verify_again(c, i);
}

/* With little memory, values are verified, and then read again into their variables. Damage that
 * comes between is noticed. */
static void second_read_is_verified_again(void **state)
{
    static const ch_restore_options little = {.staging_bytes = 1};
    ch_var                         *v = new_var("v", 3);
    ch_checkpoint                  *c = NULL;
    char                            file[300];

    t_ok(ch_checkpoint_new(&c));
    t_ok(ch_checkpoint_add_var(c, "v", v));
    t_ok(ch_checkpoint_write(c, t_path("twice"), &quick));
    set_value(v, 4);
    t_ok(ch_checkpoint_restore(c, t_path("twice"), &little, NULL));
    assert_true(value_of(v) == 3);
    snprintf(file, sizeof(file), "%s", t_path("twice.data-00000-of-00001"));
    damaged = file;
    t_refused(ch_checkpoint_restore(c, t_path("twice"), &little, NULL), CH_DATA_LOSS,
              "twice.data-00000-of-00001", "Checksum");
    damaged = NULL;
    ch_checkpoint_unref(c);
    ch_var_unref(v);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checkpoint_calls_are_refused_in_a_step),
        cmocka_unit_test(node_of_the_graph_restores_one_object),
        cmocka_unit_test(latest_restore_wins),
        cmocka_unit_test(value_that_waits_is_used_once),
        cmocka_unit_test(variable_of_every_kind_is_saved_changed_and_restored),
        cmocka_unit_test(checkpoint_has_a_data_file_for_each_server),
        cmocka_unit_test(evaluator_goes_on_when_a_checkpoint_vanishes),
        cmocka_unit_test(second_read_is_verified_again),
    };

    if (t_four_gpus(NULL) != 0)
        return 1;
    return cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}
