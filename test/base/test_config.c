/* test/base/test_config.c -- settings are read from the environment once, and errors name the
 * setting.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "cohort/log.h"

static char warnings[2048];
static int  n_warnings;

/* Reads the settings inside the log sink, as a program may. This must not deadlock. */
static void keep_warnings(const ch_log_record *r, void *arg)
{
    size_t at = strlen(warnings);

    snprintf(warnings + at, sizeof(warnings) - at, "%s\n", r->text);
    n_warnings++;
    assert_int_equal(ch__config()->threads, 3);
    (void)arg;
}

static void environment_variable_sets_its_config_field(void **state)
{
    assert_int_equal(ch__config()->threads, 3);
    assert_string_equal(ch__config()->devices, "CPU=2,GPU=4");
    assert_false(ch__config()->fuse);
    assert_true(ch__config()->interpret);
    (void)state;
}

static void config_field_has_its_default_when_the_variable_is_unset_or_empty(void **state)
{
    assert_true(ch__config()->engines); /* set, but empty */
    assert_int_equal(ch__config()->wait_notice_ms, 10000);
    (void)state;
}

static void config_warns_once_and_uses_the_default_when_a_value_does_not_parse(void **state)
{
    assert_string_equal(ch__config()->simd, "auto");
    assert_true(ch__config()->epilogue);
    assert_int_equal(ch__config()->wait_limit_ms, 600000);
    assert_int_equal(n_warnings, 3);
    assert_non_null(strstr(warnings, "COHORT_SIMD=\"mmx\" is not auto, base, avx2 or avx512"));
    assert_non_null(strstr(warnings, "COHORT_EPILOGUE=\"maybe\" is not true or false"));
    assert_non_null(strstr(warnings, "COHORT_WAIT_LIMIT_MS=\"0\""));
    (void)state;
}

static void config_reads_the_environment_once(void **state)
{
    setenv("COHORT_THREADS", "99", 1);
    assert_int_equal(ch__config()->threads, 3);
    (void)state;
}

static void config_set_sets_a_field_by_name(void **state)
{
    assert_int_equal(ch__config_set("threads", "2"), CH_OK);
    assert_int_equal(ch__config()->threads, 2);
    assert_int_equal(ch__config_set("simd", "avx2"), CH_OK);
    assert_string_equal(ch__config()->simd, "avx2");
    assert_int_equal(ch__config_set("fuse", "On"), CH_OK);
    assert_true(ch__config()->fuse);
    assert_int_equal(ch__config_set("devices", ""), CH_OK);
    assert_string_equal(ch__config()->devices, "");
    (void)state;
}

static void config_set_error_names_the_setting_and_its_valid_values(void **state)
{
    static const char *const bad[] = {"", "two", "2x", "-1", "1025", "99999999999", "1.5"};

    assert_int_equal(ch__config_set("threads", "4"), CH_OK);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(ch__config_set("threads", bad[i]), CH_INVALID_ARGUMENT);
        assert_non_null(strstr(ch_error_message(), "threads"));
        assert_non_null(strstr(ch_error_message(), "a whole number, 0 to 1024"));
        assert_int_equal(ch__config()->threads, 4);
    }
    (void)state;
}

static void config_set_rejects_text_that_does_not_fit(void **state)
{
    char text[sizeof(ch__config()->devices) + 1];

    memset(text, 'C', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    assert_int_equal(ch__config_set("devices", text), CH_INVALID_ARGUMENT);
    text[sizeof(text) - 2] = '\0';
    assert_int_equal(ch__config_set("devices", text), CH_OK);
    (void)state;
}

static void config_set_lists_the_settings_when_the_name_is_unknown(void **state)
{
    assert_int_equal(ch__config_set("treads", "2"), CH_INVALID_ARGUMENT);
    assert_non_null(strstr(ch_error_message(), "treads"));
    assert_non_null(strstr(ch_error_message(), "devices, threads, "));
    assert_non_null(strstr(ch_error_message(), "interpret"));
    (void)state;
}

static void config_rows_have_help_and_a_default_that_parses(void **state)
{
    const char *name, *fallback, *help;
    int         n = 0;

    for (; ch__config_row(n, &name, &fallback, &help); n++) {
        assert_true(strlen(help) > 0);
        assert_int_equal(ch__config_set(name, fallback), CH_OK);
    }
    assert_int_equal(n, 16); /* the fields of ch_config */
    assert_false(ch__config_row(-1, &name, &fallback, &help));
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(environment_variable_sets_its_config_field),
        cmocka_unit_test(config_field_has_its_default_when_the_variable_is_unset_or_empty),
        cmocka_unit_test(config_warns_once_and_uses_the_default_when_a_value_does_not_parse),
        cmocka_unit_test(config_reads_the_environment_once),
        cmocka_unit_test(config_set_sets_a_field_by_name),
        cmocka_unit_test(config_set_error_names_the_setting_and_its_valid_values),
        cmocka_unit_test(config_set_rejects_text_that_does_not_fit),
        cmocka_unit_test(config_set_lists_the_settings_when_the_name_is_unknown),
        cmocka_unit_test(config_rows_have_help_and_a_default_that_parses),
    };

    unsetenv("COHORT_WAIT_NOTICE_MS");
    setenv("COHORT_THREADS", "3", 1);
    setenv("COHORT_DEVICES", "CPU=2,GPU=4", 1);
    setenv("COHORT_FUSE", "off", 1);
    setenv("COHORT_INTERPRET", "1", 1);
    setenv("COHORT_ENGINES", "", 1);
    setenv("COHORT_SIMD", "mmx", 1);
    setenv("COHORT_EPILOGUE", "maybe", 1);
    setenv("COHORT_WAIT_LIMIT_MS", "0", 1);
    ch_log_set_sink(keep_warnings, NULL, CH_LOG_WARNING);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
