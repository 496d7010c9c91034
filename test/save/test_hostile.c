/* test/save/test_hostile.c -- restores of checkpoints whose checksums are right and whose
 * contents are wrong: damage and errors of the program are told apart, and nothing changes.
 *
 * Each test saves a job, writes the checkpoint again with one tensor replaced, and restores
 * that into a job that has not trained.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../ckpt/bundle.h"
#include "base/sys.h"
#include "ckpt/object_graph.h"
#include "cohort/checkpoint_reader.h"
#include "help.h"
#include "save/manager.h"
#include "save/save.h"

static const ch_write_options quick = {.wait = true, .sync = CH_OFF, .replace = true};

/* A part of a program that has a state. */
typedef struct part {
    int       n_loads;
    ch_status rc; /* result of loading */
} part;

static ch_status save_part(void *self, ch_tuple **out)
{
    ch_tensor *t = NULL;

    (void)self;
    t_ok(ch_tensor_scalar(CH_I64, 7, &t));
    *out = t_tuple(1, &t);
    return CH_OK;
}

static ch_status load_part(void *self, ch_tuple *state)
{
    part *p = self;

    (void)state;
    p->n_loads++;
    return p->rc;
}

static void begin(t_job *j, part *p)
{
    static const ch_state_ops ops = {save_part, load_part};

    t_begin(j, DEFAULT, NULL);
    t_ok(ch_checkpoint_add_state(j->checkpoint, "part", &ops, p));
}

/* A tensor that takes the place of another, or NULL: none. */
typedef struct change {
    const char *name;
    ch_dtype    dtype;
    ch_shape    shape;
    const void *data;
    int64_t     stored; /* elements that are stored, of axis 0; 0: all */
} change;

/* Writes the checkpoint `from` again, with a change, as `to`. */
static void rewrite(const char *from, const char *to, const change *x)
{
    static t_bundle       b;
    ch_checkpoint_reader *r = NULL;
    ch_tensor            *t[T_MOST_ITEMS] = {NULL};
    ch_bytes_builder      text[T_MOST_ITEMS];

    memset(text, 0, sizeof(text));
    b = (t_bundle){.n = 0};
    t_ok(ch_checkpoint_open(t_path(from), &r));
    for (int i = 0; i < ch_checkpoint_count(r); i++) {
        ch_checkpoint_item e;
        change             now = {.name = NULL};

        t_ok(ch_checkpoint_entry(r, i, &e));
        if (strcmp(e.name, CH_CKPT_METADATA_KEY) == 0)
            continue;
        if (strcmp(e.name, x->name) == 0) {
            now = *x;
        } else {
            t_ok(ch_checkpoint_read(r, e.name, 0, NULL, NULL, &t[i]));
            now = (change){e.name, e.dtype, e.shape, ch_tensor_data(t[i]), 0};
        }
        if (now.dtype == CH_STR)
            t_add_strings(&b, e.name, now.shape, now.data, &text[i]);
        else if (now.stored > 0) {
            ch_region region = {.begin = {0}};

            memcpy(region.size, now.shape.dim, sizeof(region.size));
            region.size[0] = now.stored;
            t_add_slice(&b, e.name, now.dtype, now.shape, region, now.data);
        } else
            t_add(&b, e.name, now.dtype, now.shape, now.data);
    }
    t_ok(t_write_bundle(&b, t_path(to), 1, false, NULL));
    for (int i = 0; i < T_MOST_ITEMS; i++) {
        ch_tensor_unref(t[i]);
        ch__bytes_builder_drop(&text[i]);
    }
    ch_checkpoint_close(r);
}

/* Returns the bits of the job, which has not trained: of its variables, its optimizer and the
 * next element of its data. */
static void describe(t_job *j, t_bits *b)
{
    ch_var *const *var;
    void          *position = NULL;
    size_t         n = 0;
    double         rate = 0;

    t_read_bits(j, b);
    t_ok(ch_optimizer_rate(j->optimizer, &rate));
    t_ok(ch_iterator_save(j->it, &position, &n));
    assert_true(b->n + n + 32 < sizeof(b->at));
    memcpy(b->at + b->n, position, n);
    b->n += n;
    ch_bytes_free(position);
    b->n +=
        (size_t)snprintf(b->at + b->n, 32, "%d %lld %g", ch_optimizer_vars(j->optimizer, &var),
                         (long long)ch_function_runs(j->step), rate);
}

/* Saves a job that has trained as "whole". */
static void save_whole(void)
{
    part  p = {.n_loads = 0};
    t_job j;

    begin(&j, &p);
    t_steps(&j, 3);
    t_ok(ch_checkpoint_write(j.checkpoint, t_path("whole"), &quick));
    t_end(&j);
}

/* Restores the checkpoint "changed" into a new job, which must fail and change nothing. */
static void refuse(ch_status code, const char *word, const char *other)
{
    static t_bits before, after;
    part          p = {.n_loads = 0};
    ch_restored  *r = NULL;
    t_job         j;

    begin(&j, &p);
    describe(&j, &before);
    t_refused(ch_checkpoint_restore(j.checkpoint, t_path("changed"), NULL, &r), code, word,
              other);
    assert_null(r);
    describe(&j, &after);
    t_same_bits(&before, &after);
    assert_int_equal(p.n_loads, 0);
    /* The job can go on with a good checkpoint. */
    t_ok(ch_checkpoint_restore(j.checkpoint, t_path("whole"), NULL, &r));
    t_ok(ch_restored_assert_consumed(r));
    ch_restored_unref(r);
    assert_int_equal(p.n_loads, 1);
    t_steps(&j, 1);
    t_end(&j);
}

/* The object graph is no string, or no single string, or is damaged. */
static void restore_refuses_an_object_graph_that_is_no_single_string(void **state)
{
    static const ch_str two[] = {{"", 0}, {"x", 1}}, bad[] = {{"\xff\xff\xff", 3}};
    static const float  number[] = {1, 2};
    const change        x[] = {{CH_OBJECT_GRAPH_KEY, CH_STR, ch_shape_of(0), two, 0},
                               {CH_OBJECT_GRAPH_KEY, CH_STR, ch_shape_of(2), two, 0},
                               {CH_OBJECT_GRAPH_KEY, CH_F32, ch_shape_of(2), number, 0},
                               {CH_OBJECT_GRAPH_KEY, CH_STR, ch_shape_scalar(), bad, 0}};

    (void)state;
    save_whole();
    for (size_t i = 0; i < sizeof(x) / sizeof(x[0]); i++) {
        rewrite("whole", "changed", &x[i]);
        refuse(CH_DATA_LOSS, "changed", i < 3 ? "not a single string" : "object graph");
    }
}

/* A shape of 16 GiB, of which the files hold 8 bytes. */
static void restore_allocates_no_more_than_the_files_hold(void **state)
{
    static const int64_t one[] = {5};
    const change huge = {"part/.ATTRIBUTES/STATE", CH_I64, ch_shape_of((int64_t)1 << 31), one,
                         1};
    ch_str      *empty = ch__calloc(2000000, sizeof(*empty));
    int64_t      peak;

    (void)state;
    assert_non_null(empty);
    save_whole();
    rewrite("whole", "changed", &huge);
    ch__mem_watch(true);
    refuse(CH_DATA_LOSS, "changed.data-00000-of-00001", "part/.ATTRIBUTES/STATE");
    peak = ch__mem_peak();
    ch__mem_watch(false);
    assert_true(peak < 16 << 20);
    for (int n = 900000; n <= 2000000; n += 1100000) {
        const change strings = {"part/.ATTRIBUTES/STATE", CH_STR, ch_shape_of(n), empty, 0};
        part         p = {.n_loads = 0};
        ch_checkpoint_reader *r = NULL;
        ch_tensor            *t = NULL;
        t_job                 j;

        rewrite("whole", "changed", &strings);
        begin(&j, &p);
        ch__mem_watch(true);
        assert_int_equal(ch_checkpoint_restore(j.checkpoint, t_path("changed"), NULL, NULL),
                         n < 1000000 ? CH_OK : CH_DATA_LOSS);
        peak = ch__mem_peak();
        ch__mem_watch(false);
        assert_true(peak <= (16 << 20) + 2 * (int64_t)n);
        t_end(&j);
        t_ok(ch_checkpoint_open(t_path("changed"), &r));
        ch__mem_watch(true);
        (void)!ch_checkpoint_read(r, strings.name, 0, NULL, NULL, &t);
        peak = ch__mem_peak();
        ch__mem_watch(false);
        assert_true(peak <= (16 << 20) + 2 * (int64_t)n);
        ch_tensor_unref(t);
        ch_checkpoint_close(r);
    }
    ch__free(empty);
}

/* A position that the data does not have, a metric of another shape, a variable of another
 * dtype, missing slices of a variable. */
static void restore_that_fails_changes_no_optimizer_and_no_position(void **state)
{
    static const ch_str position[] = {{"\xff\x01garbage", 9}};
    static const double zeros[64];
    const char         *weight = "model/dense/kernel/.ATTRIBUTES/VARIABLE_VALUE";
    const struct {
        change      x;
        ch_status   rc;
        const char *word;
    } at[] = {
        {{"data/.ATTRIBUTES/POSITION", CH_STR, ch_shape_scalar(), position, 0},
         CH_INVALID_ARGUMENT,
         "changed.data-00000-of-00001: tensor \"data/.ATTRIBUTES/POSITION\" at byte "},
        {{"loss/state/.ATTRIBUTES/VARIABLE_VALUE", CH_F64, ch_shape_of(5), zeros, 0},
         CH_INVALID_ARGUMENT,
         "but the variable is"},
        {{weight, CH_F64, ch_shape_of(WIDTH, 8), zeros, 0},
         CH_INVALID_ARGUMENT,
         "but the variable is"},
        {{weight, CH_F32, ch_shape_of(WIDTH, 8), zeros, 2}, CH_DATA_LOSS, "fewer bytes"},
    };

    (void)state;
    save_whole();
    for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
        rewrite("whole", "changed", &at[i].x);
        refuse(at[i].rc, at[i].x.name, at[i].word);
    }
}

/* Counts to which the program adds are in a range, so that they cannot overflow. */
static void restore_refuses_counts_that_are_out_of_range(void **state)
{
    static const int64_t     wrong[] = {-5, INT64_MAX, CH_SAVED_MAX + 1, INT64_MIN};
    static const char *const name[] = {"save_counter/.ATTRIBUTES/VARIABLE_VALUE",
                                       "step/.ATTRIBUTES/RUNS", "model/.ATTRIBUTES/STEPS"};

    (void)state;
    save_whole();
    for (size_t i = 0; i < 12; i++) {
        const change x = {name[i / 4], CH_I64, ch_shape_scalar(), &wrong[i % 4], 0};
        char         text[40];

        snprintf(text, sizeof(text), "is %lld, want 0 to ", (long long)wrong[i % 4]);
        rewrite("whole", "changed", &x);
        refuse(CH_DATA_LOSS, "changed.data-00000-of-00001", text);
    }
}

/* ---- managers ---- */

/* Saves two checkpoints, "run/ckpt-1" after 1 step and "run/ckpt-2" after 2. */
static void save_two(void)
{
    ch_checkpoint_manager *m = NULL;
    part                   p = {.n_loads = 0};
    t_job                  j;

    begin(&j, &p);
    t_ok(ch_checkpoint_manager_new(j.checkpoint, t_path("run"), NULL, &m));
    for (int i = 0; i < 2; i++) {
        t_steps(&j, 1);
        t_ok(ch_checkpoint_manager_save(m, true, NULL));
    }
    ch_checkpoint_manager_unref(m);
    t_end(&j);
}

static void remove_run(void)
{
    char command[256];

    snprintf(command, sizeof(command), "rm -rf %s", t_path("run"));
    assert_int_equal(system(command), 0);
}

/* An error of the program's own part is returned as it is, and no older checkpoint is tried. */
static void manager_returns_an_error_of_the_program_and_goes_back_no_further(void **state)
{
    static const ch_status code[] = {CH_DATA_LOSS, CH_NOT_FOUND, CH_OUT_OF_RANGE};

    (void)state;
    save_two();
    for (int i = 0; i < 3; i++) {
        part                   p = {.rc = code[i]};
        ch_checkpoint_manager *m = NULL;
        const char            *path = "";
        t_job                  j;

        begin(&j, &p);
        t_ok(ch_checkpoint_manager_new(j.checkpoint, t_path("run"), NULL, &m));
        t_refused(ch_checkpoint_manager_restore(m, NULL, &path), code[i], "run/ckpt-2",
                  "loading \"part\"");
        assert_int_equal(p.n_loads, 1);
        assert_null(path);
        ch_checkpoint_manager_unref(m);
        t_end(&j);
    }
    remove_run();
}

/* A file that may not be read is not damaged. */
static void manager_returns_permission_denied_with_the_file(void **state)
{
    t_job                  j;
    part                   p = {.n_loads = 0};
    ch_checkpoint_manager *m = NULL;
    int                    n_denied = 0;

    (void)state;
    save_two();
    begin(&j, &p);
    t_ok(ch_checkpoint_manager_new(j.checkpoint, t_path("run"), NULL, &m));
    for (int64_t n = 1;; n++) {
        int64_t   before = ch__file_calls();
        ch_status rc;
        bool      is_over;

        ch__file_fail_at(n, EACCES);
        rc = ch_checkpoint_manager_restore(m, NULL, NULL);
        is_over = ch__file_calls() - before < n;
        ch__file_fail_at(0, 0);
        if (rc != CH_OK) {
            t_refused(rc, CH_PERMISSION_DENIED, t_folder, "run");
            n_denied += strstr(ch_error_message(), "run/ckpt-2.data-00000-of-00001") != NULL;
        }
        if (is_over)
            break;
    }
    assert_true(n_denied > 0);
    ch_checkpoint_manager_unref(m);
    t_end(&j);
    remove_run();
}

/* A hostile count in the newest checkpoint: the manager goes back to the one before. */
static void manager_goes_back_when_a_count_or_a_graph_is_hostile(void **state)
{
    static const int64_t most = INT64_MAX;
    static const ch_str  none[] = {{"", 0}};
    const change         x[] = {
                {"save_counter/.ATTRIBUTES/VARIABLE_VALUE", CH_I64, ch_shape_scalar(), &most, 0},
                {CH_OBJECT_GRAPH_KEY, CH_STR, ch_shape_of(0), none, 0}};

    (void)state;
    for (int i = 0; i < 2; i++) {
        ch_checkpoint_manager *m = NULL;
        const char            *path = NULL;
        part                   p = {.n_loads = 0};
        t_job                  j;

        save_two();
        rewrite("run/ckpt-2", "run/ckpt-2", &x[i]);
        begin(&j, &p);
        t_ok(ch_checkpoint_manager_new(j.checkpoint, t_path("run"), NULL, &m));
        t_ok(ch_checkpoint_manager_restore(m, NULL, &path));
        assert_string_equal(path, t_path("run/ckpt-1"));
        assert_int_equal(ch_function_runs(j.step), 1);
        t_ok(ch_checkpoint_manager_save(m, true, &path));
        assert_string_equal(path, t_path("run/ckpt-3"));
        ch_checkpoint_manager_unref(m);
        t_end(&j);
        remove_run();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(restore_refuses_an_object_graph_that_is_no_single_string),
        cmocka_unit_test(restore_allocates_no_more_than_the_files_hold),
        cmocka_unit_test(restore_that_fails_changes_no_optimizer_and_no_position),
        cmocka_unit_test(restore_refuses_counts_that_are_out_of_range),
        cmocka_unit_test(manager_returns_an_error_of_the_program_and_goes_back_no_further),
        cmocka_unit_test(manager_returns_permission_denied_with_the_file),
        cmocka_unit_test(manager_goes_back_when_a_count_or_a_graph_is_hostile),
    };

    return cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}
