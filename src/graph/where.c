/* graph/where.c -- finds the source line of an address, from the program's debug information.
 *
 * The lookup happens only when an error message is made, so it may be slow.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "graph/where.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? slash + 1 : path;
}

#if CH_HAVE_LIBDW
#include <elfutils/libdwfl.h>

static const char advice[] = "compile with -g to see the line";

static int line_of(uintptr_t address, char *text, size_t size)
{
    static char         *debug_path;
    const Dwfl_Callbacks find = {.find_elf = dwfl_linux_proc_find_elf,
                                 .find_debuginfo = dwfl_standard_find_debuginfo,
                                 .debuginfo_path = &debug_path};
    Dwfl                *dwfl = dwfl_begin(&find);
    int                  found = 0, line = 0;

    if (dwfl == NULL)
        return 0;
    if (dwfl_linux_proc_report(dwfl, getpid()) == 0 && dwfl_report_end(dwfl, NULL, NULL) == 0) {
        Dwfl_Line  *at = dwfl_getsrc(dwfl, address);
        const char *file = at != NULL ? dwfl_lineinfo(at, NULL, &line, NULL, NULL, NULL) : NULL;

        if (file != NULL)
            found = snprintf(text, size, "%s:%d", base_name(file), line) > 0;
    }
    dwfl_end(dwfl);
    return found;
}
#else
static const char advice[] = "addr2line shows the line";

static int line_of(uintptr_t address, char *text, size_t size)
{
    (void)address, (void)text, (void)size;
    return 0;
}
#endif

static void look_up(const void *address, char *text, size_t size)
{
    Dl_info     info;
    uintptr_t   call = (uintptr_t)address - 1, from; /* the return address is after the call */
    const char *in;

    text[0] = '\0';
    if (address == NULL || line_of(call, text, size) || dladdr(address, &info) == 0)
        return;
    in = info.dli_sname != NULL ? info.dli_sname : base_name(info.dli_fname);
    from = (uintptr_t)(info.dli_sname != NULL ? info.dli_saddr : info.dli_fbase);
    snprintf(text, size, "%s+0x%zx (%s)", in, (size_t)(call - from), advice);
}

/* The last result of each thread is cached, because a call that fails often fails again. */
void ch__where(const void *address, char *text, size_t size)
{
    static _Thread_local const void *last;
    static _Thread_local char        where[256];

    if (address != last || address == NULL)
        look_up(address, where, sizeof(where));
    last = address;
    (void)snprintf(text, size, "%s", where);
}

ch_status ch__fail_in(ch_status rc, const char *composite, const char *scope,
                      const void *caller)
{
    const char *why = ch_error_message(), *name = composite != NULL ? composite : "";
    char        where[256];

    if (strncmp(name, "ch_", 3) == 0)
        name += 3;
    if (strncmp(why, name, strlen(name)) == 0)
        name = "";
    scope = scope != NULL ? scope : "";
    ch__where(caller, where, sizeof(where));
    return ch__fail(rc, "%s%s%s%s%s%s%s", name, name[0] != '\0' ? ": " : "", why,
                    scope[0] != '\0' ? ", in " : "", scope, where[0] != '\0' ? ", at " : "",
                    where);
}
