/* test/tools/test_unload.c -- a program may load and unload the library, or a plug-in that
 * links it.
 *
 *      test_unload LIBRARY PLUGIN
 *
 * The program itself does not link the library. The library's threads outlive an unload, so
 * unloading must not unmap their code, and loading again must not start more threads.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <dlfcn.h>
#include <string.h>

enum { ROUNDS = 20 };

static const char *library_path, *plugin_path;

static int count_threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int  n = 0;

    assert_non_null(tasks);
    for (const struct dirent *e; (e = readdir(tasks)) != NULL;)
        n += e->d_name[0] != '.';
    closedir(tasks);
    return n;
}

static void *load(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (handle == NULL)
        fail_msg("%s", dlerror());
    return handle;
}

static void unloading_a_plugin_leaves_threads_and_code_when_it_used_the_library(void **state)
{
    int threads = 0;

    for (int i = 0; i < ROUNDS; i++) {
        void *plugin = load(plugin_path), *symbol = dlsym(plugin, "plugin_use");
        int (*use)(void);

        memcpy(&use, &symbol, sizeof(use));
        assert_int_equal(use(), 0);
        assert_int_equal(dlclose(plugin), 0);
        if (i == 0)
            threads = count_threads();
        assert_int_equal(count_threads(), threads);
    }
    (void)state;
}

static void library_can_be_opened_used_and_closed_repeatedly(void **state)
{
    int threads = 0;

    for (int i = 0; i < ROUNDS; i++) {
        void *library = load(library_path), *plugin = load(plugin_path);
        void *symbol = dlsym(plugin, "plugin_use");
        int (*use)(void);

        assert_non_null(dlsym(library, "ch_strategy_run"));
        memcpy(&use, &symbol, sizeof(use));
        assert_int_equal(use(), 0);
        assert_int_equal(dlclose(plugin), 0);
        assert_int_equal(dlclose(library), 0);
        if (i == 0)
            threads = count_threads();
        assert_int_equal(count_threads(), threads);
    }
    (void)state;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unloading_a_plugin_leaves_threads_and_code_when_it_used_the_library),
        cmocka_unit_test(library_can_be_opened_used_and_closed_repeatedly),
    };

    if (argc < 3)
        return 2;
    library_path = argv[1];
    plugin_path = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
