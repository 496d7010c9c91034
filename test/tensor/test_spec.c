/* test/tensor/test_spec.c -- names of devices: parsing, merging and printing them.
 *
 * Numbers in comments are statements of doc/conformance.md, section 6.1.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "tensor/device.h"

static void assert_prints(const ch_device_spec *spec, const char *want)
{
    char text[192];

    assert_int_equal(ch_device_spec_print(spec, text, sizeof(text)), strlen(want));
    assert_string_equal(text, want);
}

static void assert_parses(const char *text, const char *want)
{
    ch_device_spec spec;

    assert_int_equal(ch_device_spec_parse(text, &spec), CH_OK);
    assert_prints(&spec, want);
}

static void device_names_parse_and_print_in_one_form(void **state)
{
    assert_parses("", "");                    /* 6.1.1 */
    assert_parses("/cpu:0", "/device:CPU:0"); /* 6.1.2 */
    assert_parses("cpu:0", "/device:CPU:0");  /* 6.1.2 */
    assert_parses("CPU:0", "/device:CPU:0");  /* 6.1.2 */
    assert_parses("GPU:1", "/device:GPU:1");  /* 6.1.3 */
    assert_parses("gpu", "/device:GPU:*");    /* 6.1.4 */
    assert_parses("/job:foo/replica:12/task:3/device:GPU:*",
                  "/job:foo/replica:12/task:3/device:GPU:*"); /* 6.1.5 */
    assert_parses("/job:foo/replica:12/task:3/gpu",
                  "/job:foo/replica:12/task:3/device:GPU:*");                   /* 6.1.5 */
    assert_parses("/replica:1/task:0/cpu:0", "/replica:1/task:0/device:CPU:0"); /* 6.1.6 */
    assert_parses("/job:muu/device:MyFunnyDevice:2",
                  "/job:muu/device:MyFunnyDevice:2"); /* 6.1.7 */
    assert_parses("/device:gpu:2", "/device:GPU:2");  /* 6.1.22 */
    assert_parses("job:worker/task:1", "/job:worker/task:1");
    assert_parses("/replica:*/tpu:*", "/device:TPU:*");
    (void)state;
}

static void device_spec_knows_types_without_the_device_prefix(void **state)
{
    assert_parses("Tpu:3", "/device:TPU:3");
    assert_parses("custom:3", "/device:CUSTOM:3");
    assert_parses("EPU", "/device:EPU:*");
    (void)state;
}

static void device_spec_knows_configured_types_without_the_device_prefix(void **state)
{
    ch_device_spec spec;

    assert_int_equal(ch_device_spec_parse("npu:1", &spec), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_devices_configure(&(ch_devices_options){.spec = "NPU=2"}), CH_OK);
    assert_parses("npu:1", "/device:NPU:1");
    ch__devices_reset();
    (void)state;
}

static void assert_refuses(const char *text, const char *why)
{
    ch_device_spec spec = {.index = 77};

    assert_int_equal(ch_device_spec_parse(text, &spec), CH_INVALID_ARGUMENT);
    assert_non_null(strstr(ch_error_message(), text));
    assert_non_null(strstr(ch_error_message(), why));
    assert_int_equal(spec.index, 77);
}

static void device_spec_parse_error_gives_the_reason(void **state)
{
    assert_refuses("/job:muu/device:GPU:2/cpu:0", "multiple device types"); /* 6.1.8 */
    assert_refuses("/foo:1", "Unknown attribute \"foo\"");                  /* 6.1.9 */
    assert_refuses("/device:GPU:x", "\"x\"");                               /* 6.1.10 */
    assert_refuses("/task:-1", "\"-1\"");
    assert_refuses("/task:99999999999", "99999999999");
    assert_refuses("/job:", "empty");
    assert_refuses("/device::0", "empty");
    assert_refuses("GPU:0:1", "\"0:1\"");
    assert_refuses(
        "/job:0123456789012345678901234567890123456789012345678901234567890123456789",
        "too long");
    assert_int_equal(ch_device_spec_parse(NULL, &(ch_device_spec){{0}, 0, 0, {0}, 0}),
                     CH_INVALID_ARGUMENT);
    (void)state;
}

static void assert_merges(const char *base, const char *over, const char *want)
{
    ch_device_spec a, b;

    assert_int_equal(ch_device_spec_parse(base, &a), CH_OK);
    assert_int_equal(ch_device_spec_parse(over, &b), CH_OK);
    ch_device_spec merged = ch_device_spec_merge(&a, &b);
    assert_prints(&merged, want);
}

static void device_spec_merge_prefers_the_parts_that_are_set(void **state)
{
    assert_merges("/job:foo/replica:0", "/task:1/device:GPU:2",
                  "/job:foo/replica:0/task:1/device:GPU:2"); /* 6.1.11 */
    assert_merges("/task:1/device:CPU:0", "/job:boo/device:GPU:0",
                  "/job:boo/task:1/device:GPU:0"); /* 6.1.11 */
    /* 6.1.14: in a graph no job is filled in. */
    assert_merges("/replica:0/task:0/device:CPU:0", "/cpu:0", "/replica:0/task:0/device:CPU:0");
    (void)state;
}

static void assert_canonical(const char *text, const char *fallback, const char *want)
{
    ch_device_spec spec;

    assert_int_equal(ch_device_spec_canonical(text, fallback, &spec), CH_OK);
    assert_prints(&spec, want);
}

static void device_spec_canonical_has_all_parts(void **state)
{
    assert_canonical("", NULL, "/job:localhost/replica:0/task:0/device:CPU:0"); /* 6.1.12 */
    assert_canonical("/cpu:0", NULL,
                     "/job:localhost/replica:0/task:0/device:CPU:0"); /* 6.1.13 */
    assert_canonical("/job:worker/cpu:0", NULL,
                     "/job:worker/replica:0/task:0/device:CPU:0"); /* 6.1.16 */
    assert_canonical("/job:worker/task:1/cpu:0", "/gpu:0",
                     "/job:worker/replica:0/task:1/device:CPU:0"); /* 6.1.17 */
    assert_canonical("/job:worker/task:1", "/gpu:0",
                     "/job:worker/replica:0/task:1/device:GPU:0"); /* 6.1.18 */
    assert_canonical("/cpu:0", "/job:worker",
                     "/job:worker/replica:0/task:0/device:CPU:0"); /* 6.1.19 */
    assert_canonical("/job:worker/replica:0/task:1/device:CPU:0",
                     "/job:chief/replica:0/task:1/device:CPU:0",
                     "/job:worker/replica:0/task:1/device:CPU:0"); /* 6.1.20 */
    (void)state;
}

static void device_spec_canonical_type_has_no_small_letters(void **state)
{
    ch_device_spec spec;

    /* 6.1.22 */
    assert_canonical("/device:cpu:0", NULL, "/job:localhost/replica:0/task:0/device:CPU:0");
    assert_int_equal(ch_device_spec_canonical("/device:MyFunnyDevice:2", NULL, &spec),
                     CH_INVALID_ARGUMENT);
    assert_non_null(strstr(ch_error_message(), "must be all-caps"));
    (void)state;
}

static void device_find_fills_in_the_job_of_this_process(void **state)
{
    ch_device *d = NULL;

    /* 6.1.15 */
    assert_int_equal(
        ch_devices_configure(&(ch_devices_options){.spec = "GPU=1", .job = "worker"}), CH_OK);
    assert_int_equal(ch_device_find("/cpu:0", &d), CH_OK);
    assert_string_equal(ch_device_name(d), "/job:worker/replica:0/task:0/device:CPU:0");
    ch__devices_reset();
    (void)state;
}

static void device_find_fills_in_parts_of_the_current_device(void **state)
{
    ch_device *gpu = NULL, *d = NULL;

    /* 6.1.21 */
    assert_int_equal(ch_devices_configure(
                         &(ch_devices_options){.spec = "GPU=1", .job = "worker", .task = 1}),
                     CH_OK);
    assert_int_equal(ch_device_find("/gpu:0", &gpu), CH_OK);
    assert_int_equal(ch_device_enter(gpu), CH_OK);
    assert_int_equal(ch_device_find("/job:worker/task:1", &d), CH_OK);
    assert_string_equal(ch_device_name(d), "/job:worker/replica:0/task:1/device:GPU:0");
    ch_device_leave();
    ch__devices_reset();
    (void)state;
}

static void the_host_of_a_device_is_the_cpu_of_its_task(void **state)
{
    ch_device_spec spec;

    /* 6.1.23 */
    assert_int_equal(ch_device_spec_parse("/job:worker/replica:0/task:1/device:GPU:3", &spec),
                     CH_OK);
    spec = ch__device_spec_host(&spec);
    assert_prints(&spec, "/job:worker/replica:0/task:1/device:CPU:0");
    (void)state;
}

static void device_spec_local_has_no_job_and_no_task(void **state)
{
    ch_device_spec spec;

    /* 6.1.24 */
    assert_int_equal(ch_device_spec_canonical("/job:worker/task:1/gpu:0", NULL, &spec), CH_OK);
    spec = ch__device_spec_local(&spec);
    assert_prints(&spec, "/replica:0/device:GPU:0");
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(device_names_parse_and_print_in_one_form),
        cmocka_unit_test(device_spec_knows_types_without_the_device_prefix),
        cmocka_unit_test(device_spec_knows_configured_types_without_the_device_prefix),
        cmocka_unit_test(device_spec_parse_error_gives_the_reason),
        cmocka_unit_test(device_spec_merge_prefers_the_parts_that_are_set),
        cmocka_unit_test(device_spec_canonical_has_all_parts),
        cmocka_unit_test(device_spec_canonical_type_has_no_small_letters),
        cmocka_unit_test(device_find_fills_in_the_job_of_this_process),
        cmocka_unit_test(device_find_fills_in_parts_of_the_current_device),
        cmocka_unit_test(the_host_of_a_device_is_the_cpu_of_its_task),
        cmocka_unit_test(device_spec_local_has_no_job_and_no_task),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
