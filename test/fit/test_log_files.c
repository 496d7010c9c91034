/* test/fit/test_log_files.c -- log files of a training: as CSV, and as JSON with an object on
 * each line.
 *
 * The tests compare whole files, also after a training is continued, after columns are added,
 * and after failed writes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "training_help.h"

#include <fcntl.h>
#include <locale.h>
#include <sys/stat.h>

#include "../file/folder.h"
#include "base/sys.h"
#include "file/folder.h"
#include "fit/report/number.h"

/* Returns the text of a file, valid until the next call. */
static const char *text_of(const char *path)
{
    static char text[1 << 16];
    FILE       *f = fopen(path, "rb");
    size_t      n;

    assert_non_null(f);
    n = fread(text, 1, sizeof(text) - 1, f);
    fclose(f);
    text[n] = '\0';
    return text;
}

static void put_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    fclose(f);
}

/* Runs two epochs of two steps. The second epoch has an additional number. */
static void train(ch_callback *c)
{
    ch_training t = {0};

    t_begin(c, &t);
    for (t.epoch = 0; t.epoch < 2; t.epoch++) {
        for (int k = 0; k < 2; k++) {
            t.step++;
            t_log(&t, "loss", 1.0 / (double)t.step);
            t_ok(t_tell(c, &t, CH_ON_STEP));
        }
        t_log(&t, "val_loss", 0.5 + t.epoch);
        t_ok(t_tell(c, &t, CH_ON_EPOCH_END));
        ch__logs_drop(&t.logs);
    }
    t_end(c, &t);
}

/* ---- numbers ---- */

static void number_text_reads_back_to_the_same_number(void **state)
{
    static const struct {
        double      x;
        const char *text;
    } each[] = {{0, "0"},
                {-0.0, "-0"},
                {1, "1"},
                {-469, "-469"},
                {0.1, "0.1"},
                {0.00001, "0.00001"},
                {1.5e-6, "1.5e-06"},
                {1e15, "1000000000000000"},
                {1e16, "1e+16"},
                {-1.25e300, "-1.25e+300"},
                {1.0 / 3, "0.3333333333333333"},
                {5e-324, "5e-324"},
                {1.7976931348623157e308, "1.7976931348623157e+308"},
                {123456.789, "123456.789"},
                {9007199254740993.0, "9007199254740992"},
                {(double)NAN, "nan"},
                {(double)INFINITY, "inf"},
                {-(double)INFINITY, "-inf"}};
    unsigned seed = 1;

    for (size_t i = 0; i < sizeof(each) / sizeof(each[0]); i++)
        assert_string_equal(ch__number_text(each[i].x, false).text, each[i].text);
    assert_string_equal(ch__number_text((double)NAN, true).text, "null");
    assert_string_equal(ch__number_text(-(double)INFINITY, true).text, "null");
    assert_string_equal(ch__number_text(0.5, true).text, "0.5");
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = 0;
        double   x;

        for (int k = 0; k < 4; k++)
            bits = bits << 16 | t_random(&seed, 1 << 16);
        memcpy(&x, &bits, sizeof(x));
        if (i % 2 == 0)
            x = (double)t_random(&seed, 1 << 24) / (1 + (double)t_random(&seed, 1 << 16));
        if (isfinite(x))
            assert_true(strtod(ch__number_text(x, false).text, NULL) == x);
    }
    (void)state;
}

/* If the machine has no such locale, the test checks nothing. */
static void number_text_has_a_point_in_every_locale(void **state)
{
    static const char *const name[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE.utf8",
                                       "ps_AF.UTF-8"};

    for (int i = 0; i < 4; i++)
        if (setlocale(LC_NUMERIC, name[i]) != NULL)
            assert_string_equal(ch__number_text(0.625, false).text, "0.625");
    setlocale(LC_NUMERIC, "C");
    (void)state;
}

/* ---- CSV ---- */

static void csv_log_has_a_line_for_each_epoch(void **state)
{
    const char  *path = t_path("epochs.csv");
    ch_callback *c = NULL;

    put_file(path, "what was there\n");
    t_ok(ch_callback_csv_log(path, NULL, &c));
    train(c);
    assert_string_equal(text_of(path), "epoch,loss,val_loss\n"
                                       "0,0.5,0.5\n"
                                       "1,0.25,1.5\n");
    train(c); /* the file is continued */
    assert_string_equal(text_of(path), "epoch,loss,val_loss\n"
                                       "0,0.5,0.5\n1,0.25,1.5\n0,0.5,0.5\n1,0.25,1.5\n");
    ch_callback_unref(c);
    (void)state;
}

static void csv_log_adds_a_column_for_a_later_name(void **state)
{
    const char  *path = t_path("steps.csv");
    ch_callback *c = NULL;

    t_ok(ch_callback_csv_log(path, &(ch_callback_log_file_options){.every_steps = 1}, &c));
    train(c);
    assert_string_equal(text_of(path), "epoch,step,loss,val_loss\n"
                                       "0,1,1,\n"
                                       "0,2,0.5,\n"
                                       "0,2,0.5,0.5\n"
                                       "1,3,0.3333333333333333,\n"
                                       "1,4,0.25,\n"
                                       "1,4,0.25,1.5\n");
    ch_callback_unref(c);
    t_ok(ch_callback_csv_log(path, &(ch_callback_log_file_options){.every_steps = 3}, &c));
    train(c);
    assert_string_equal(text_of(path), "epoch,step,loss,val_loss\n"
                                       "0,2,0.5,0.5\n"
                                       "1,3,0.3333333333333333,\n"
                                       "1,4,0.25,1.5\n");
    ch_callback_unref(c);
    (void)state;
}

static void csv_log_appends_by_the_names_in_the_file(void **state)
{
    const char  *path = t_path("append.csv");
    ch_callback *c = NULL;

    put_file(path, "epoch,\"a, \"\"b\"\"\",val_loss\r\n0,1,2\r\n1,3"); /* cut off */
    t_ok(ch_callback_csv_log(path, &(ch_callback_log_file_options){.append = true}, &c));
    train(c);
    assert_string_equal(text_of(path), "epoch,\"a, \"\"b\"\"\",val_loss,loss\n"
                                       "0,1,2,\n"
                                       "1,3,\n"
                                       "0,,0.5,0.5\n"
                                       "1,,1.5,0.25\n");
    train(c);
    assert_non_null(strstr(text_of(path), "0.25\n0,,0.5,0.5\n1,,1.5,0.25\n"));
    ch_callback_unref(c);

    put_file(path, "");
    t_ok(ch_callback_csv_log(path, &(ch_callback_log_file_options){.append = true}, &c));
    train(c);
    assert_string_equal(text_of(path), "epoch,loss,val_loss\n0,0.5,0.5\n1,0.25,1.5\n");
    ch_callback_unref(c);

    put_file(path, "name,value\n");
    t_ok(ch_callback_csv_log(path, &(ch_callback_log_file_options){.append = true}, &c));
    t_refused(t_tell(c, &(ch_training){0}, CH_ON_BEGIN), CH_INVALID_ARGUMENT, "append.csv",
              "\"epoch\"");
    assert_string_equal(text_of(path), "name,value\n");
    ch_callback_unref(c);
    (void)state;
}

static void csv_log_quotes_names_and_leaves_missing_values_empty(void **state)
{
    const char  *path = t_path("names.csv");
    ch_callback *c = NULL;
    ch_training  t = {0};

    t_ok(ch_callback_csv_log(path, NULL, &c));
    t_begin(c, &t);
    t_log(&t, "a,b", NAN);
    t_log(&t, "say \"so\"", -INFINITY);
    t_log(&t, "", 1e-300);
    t_ok(t_tell(c, &t, CH_ON_EPOCH_END));
    ch__logs_drop(&t.logs);
    t.epoch = 1;
    t_log(&t, "say \"so\"", 2);
    t_ok(t_tell(c, &t, CH_ON_EPOCH_END));
    t_end(c, &t);
    assert_string_equal(text_of(path), "epoch,\"a,b\",\"say \"\"so\"\"\",\"\"\n"
                                       "0,nan,-inf,1e-300\n"
                                       "1,,2,\n");
    ch_callback_unref(c);
    (void)state;
}

/* Neither the link nor its target is replaced. */
static void csv_log_to_a_link_keeps_its_columns(void **state)
{
    const char  *path = t_path("link.csv"), *target = t_path("target.csv");
    ch_callback *c = NULL;
    struct stat  about;
    t_logged     logged = {0};

    ch_log_set_sink(t_sink, &logged, CH_LOG_WARNING);
    assert_int_equal(symlink(target, path), 0);
    t_ok(ch_callback_csv_log(path, &(ch_callback_log_file_options){.every_steps = 2}, &c));
    train(c);
    assert_string_equal(text_of(target),
                        "epoch,step,loss\n0,2,0.5\n0,2,0.5\n1,4,0.25\n1,4,0.25\n");
    assert_int_equal(lstat(path, &about), 0);
    assert_true(S_ISLNK(about.st_mode));
    assert_int_equal(logged.n, 1);
    assert_non_null(strstr(logged.text, "\"val_loss\""));
    ch_callback_unref(c);
    t_ok(ch_callback_csv_log(path, &(ch_callback_log_file_options){.append = true}, &c));
    train(c);
    assert_non_null(strstr(text_of(target), "1,4,0.25\n0,2,0.5\n1,4,0.25\n"));
    ch_callback_unref(c);
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
    (void)state;
}

/* ---- JSON lines ---- */

/* Removes the seconds, which differ each time. */
static const char *without_seconds(const char *text)
{
    static char left[1 << 16];
    size_t      n = 0;

    while (*text != '\0') {
        if (strncmp(text, "\"seconds\": ", 11) == 0) {
            char  *end;
            double x = strtod(text + 11, &end);

            assert_true(x >= 0 && x < 1e6 && strncmp(end, ", ", 2) == 0);
            text = end + 2;
        }
        left[n++] = *text++;
    }
    left[n] = '\0';
    return left;
}

static void json_log_has_an_object_on_each_line(void **state)
{
    const char  *path = t_path("log.jsonl");
    ch_callback *c = NULL;

    put_file(path, "{\"event\": \"epo");
    t_ok(ch_callback_json_log(
        path, &(ch_callback_log_file_options){.append = true, .every_steps = 3}, &c));
    train(c);
    assert_string_equal(
        without_seconds(text_of(path)),
        "{\"event\": \"epo\n"
        "{\"event\": \"epoch\", \"epoch\": 0, \"step\": 2, \"loss\": 0.5, \"val_loss\": 0.5}\n"
        "{\"event\": \"step\", \"epoch\": 1, \"step\": 3, \"loss\": 0.3333333333333333}\n"
        "{\"event\": \"epoch\", \"epoch\": 1, \"step\": 4, \"loss\": 0.25, \"val_loss\": "
        "1.5}\n");
    ch_callback_unref(c);
    (void)state;
}

static void json_log_writes_null_for_nan_and_escapes_names(void **state)
{
    const char  *path = t_path("odd.jsonl");
    ch_callback *c = NULL;
    ch_training  t = {0};

    t_ok(ch_callback_json_log(path, NULL, &c));
    t_begin(c, &t);
    t_log(&t, "a\"b\\c\n\xc3\xa9", NAN);
    t_log(&t, "up", INFINITY);
    t_log(&t, "third", 1.0 / 3);
    t_ok(t_tell(c, &t, CH_ON_EPOCH_END));
    t_end(c, &t);
    assert_string_equal(without_seconds(text_of(path)),
                        "{\"event\": \"epoch\", \"epoch\": 0, \"step\": 0, "
                        "\"a\\\"b\\\\c\\u000a\xc3\xa9\": null, \"up\": null, "
                        "\"third\": 0.3333333333333333}\n");
    ch_callback_unref(c);
    (void)state;
}

/* ---- errors ---- */

static void log_files_reject_paths_that_cannot_be_written(void **state)
{
    ch_callback *c = NULL;
    ch_training  t = {0};

    t_refused(ch_callback_csv_log(NULL, NULL, &c), CH_INVALID_ARGUMENT, "csv_log", "path");
    t_refused(ch_callback_json_log("", NULL, &c), CH_INVALID_ARGUMENT, "json_log", "path");
    t_refused(ch_callback_csv_log("x", &(ch_callback_log_file_options){.every_steps = -1}, &c),
              CH_INVALID_ARGUMENT, "every_steps", "-1");
    t_refused(ch_callback_csv_log("x", NULL, NULL), CH_INVALID_ARGUMENT, "out", "NULL");

    t_ok(ch_callback_csv_log(t_path("none/log.csv"), NULL, &c));
    t_refused(t_tell(c, &t, CH_ON_BEGIN), CH_NOT_FOUND, "callback csv_log", "none/log.csv");
    t_ok(t_tell(c, &t, CH_ON_END));
    ch_callback_unref(c);

    t_log(&t, "loss", 1);
    t_ok(ch_callback_json_log("/dev/full", NULL, &c));
    t_ok(t_tell(c, &t, CH_ON_BEGIN));
    t_refused(t_tell(c, &t, CH_ON_EPOCH_END), CH_RESOURCE_EXHAUSTED, "callback json_log",
              "/dev/full");
    t_ok(t_tell(c, &t, CH_ON_END));
    ch_callback_unref(c);
    ch__logs_drop(&t.logs);
    (void)state;
}

static void csv_log_writes_no_line_in_an_evaluation(void **state)
{
    const char  *path = t_path("quiet.csv");
    ch_callback *c = NULL;
    ch_training  t = {.is_evaluation = true};

    t_ok(ch_callback_csv_log(path, &(ch_callback_log_file_options){.every_steps = 1}, &c));
    for (unsigned event = CH_ON_BEGIN; event <= CH_ON_END; event <<= 1)
        t_ok(t_tell(c, &t, (ch_event)event));
    assert_int_equal(access(path, F_OK), -1);
    ch_callback_unref(c);
    (void)state;
}

/* Runs a training in which a new name appears late, so that the file must be rewritten, while a
 * file operation or an allocation fails. */
static ch_status try_training(const char *path, bool is_json)
{
    ch_callback_log_file_options o = {.append = true, .every_steps = 1};
    ch_callback                 *c = NULL;
    ch_training                  t = {.step = 1};
    ch_status                    rc = is_json ? ch_callback_json_log(path, &o, &c)
                                              : ch_callback_csv_log(path, &o, &c),
              end;

    if (rc != CH_OK)
        return rc;
    rc = t_tell(c, &t, CH_ON_BEGIN);
    if (rc == CH_OK)
        rc = ch__logs_set(&t.logs, "loss", 0.5);
    if (rc == CH_OK)
        rc = t_tell(c, &t, CH_ON_STEP);
    if (rc == CH_OK)
        rc = ch__logs_set(&t.logs, "val_loss", 0.25);
    if (rc == CH_OK)
        rc = t_tell(c, &t, CH_ON_EPOCH_END);
    end = t_tell(c, &t, CH_ON_END);
    ch__logs_drop(&t.logs);
    ch_callback_unref(c);
    return rc != CH_OK ? rc : end;
}

static void csv_log_is_complete_when_a_call_or_allocation_fails(void **state)
{
    const char *path = t_path("fails.csv");

    for (int way = 0; way < 4; way++) {
        ch_status rc = CH_UNIMPLEMENTED;

        for (int n = 1; rc != CH_OK; n++) {
            int64_t live = ch__mem_live();

            put_file(path, "epoch,old\n9,8\n");
            if (way < 2)
                ch__mem_fail_at(n);
            else
                ch__file_fail_at(n, EIO);
            rc = try_training(path, way % 2 == 1);
            ch__mem_fail_at(0);
            ch__file_fail_at(0, 0);
            assert_int_equal(ch__mem_live(), live);
            assert_true(strncmp(text_of(path), "epoch,old", 9) == 0);
            assert_non_null(strstr(text_of(path), "\n9,8"));
            assert_true(n < 200);
        }
        assert_non_null(strstr(text_of(path), way % 2 == 1 ? "0.25}\n" : "\n0,,1,0.5,0.25\n"));
    }
    (void)state;
}

static void csv_log_is_the_same_after_short_writes(void **state)
{
    const char *path = t_path("cut.csv");

    put_file(path, "");
    ch__file_limit_io(3);
    t_ok(try_training(path, false));
    ch__file_limit_io(0);
    assert_string_equal(text_of(path), "epoch,step,loss,val_loss\n0,1,0.5,\n0,1,0.5,0.25\n");
    (void)state;
}

/* ---- folders ---- */

static void folder_make_makes_all_parent_folders(void **state)
{
    t_ok(ch__folder_make(t_path("a/b//c")));
    t_ok(ch__folder_make(t_path("a/b/c/")));
    assert_int_equal(access(t_path("a/b/c"), W_OK), 0);
    put_file(t_path("a/file"), "");
    t_refused(ch__folder_make(t_path("a/file")), CH_NOT_FOUND, "a/file", "folder");
    t_refused(ch__folder_make(t_path("a/file/x")), CH_NOT_FOUND, "a/file/x",
              "cannot be created");
    t_refused(ch__folder_make(""), CH_INVALID_ARGUMENT, "folder", "name");
    t_ok(ch__folder_make("/"));
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(number_text_reads_back_to_the_same_number),
        cmocka_unit_test(number_text_has_a_point_in_every_locale),
        cmocka_unit_test(csv_log_has_a_line_for_each_epoch),
        cmocka_unit_test(csv_log_adds_a_column_for_a_later_name),
        cmocka_unit_test(csv_log_appends_by_the_names_in_the_file),
        cmocka_unit_test(csv_log_quotes_names_and_leaves_missing_values_empty),
        cmocka_unit_test(csv_log_to_a_link_keeps_its_columns),
        cmocka_unit_test(json_log_has_an_object_on_each_line),
        cmocka_unit_test(json_log_writes_null_for_nan_and_escapes_names),
        cmocka_unit_test(log_files_reject_paths_that_cannot_be_written),
        cmocka_unit_test(csv_log_writes_no_line_in_an_evaluation),
        cmocka_unit_test(csv_log_is_complete_when_a_call_or_allocation_fails),
        cmocka_unit_test(csv_log_is_the_same_after_short_writes),
        cmocka_unit_test(folder_make_makes_all_parent_folders),
    };

    return cmocka_run_group_tests_name("log_files", tests, t_folder_make, t_folder_remove);
}
