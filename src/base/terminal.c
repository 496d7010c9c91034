/* base/terminal.c -- properties of terminals, and the live line.
 *
 * `live` is the state of the live line, of which a process has at most one. The progress bar of
 * ch_fit draws it; the log and other output are printed above it. `lock` protects `live` and
 * serialises output. ch__live_hide locks it and ch__live_show unlocks it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/terminal.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* ---- properties of a terminal ---- */

/* Returns the value of an environment variable, or NULL if it is unset or empty. */
static const char *env(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && value[0] != '\0' ? value : NULL;
}

ch_terminal ch__terminal(int fd)
{
    const char *term = env("TERM");
    bool        is_capable = isatty(fd) == 1 && term != NULL && strcmp(term, "dumb") != 0;

    return (ch_terminal){.can_erase = is_capable,
                         .has_color = is_capable && env("NO_COLOR") == NULL};
}

bool ch__locale_is_utf8(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *value = env(names[i]);
        const char *set = value != NULL ? strchr(value, '.') : NULL;

        if (value != NULL)
            return set != NULL &&
                   (strncasecmp(set, ".UTF-8", 6) == 0 || strncasecmp(set, ".utf8", 5) == 0);
    }
    return false;
}

/* Returns the value of COLUMNS, or 0 if it is unset or not a valid number. */
static int columns_variable(void)
{
    const char *value = env("COLUMNS");
    char       *end;
    long        columns = value != NULL ? strtol(value, &end, 10) : 0;

    return columns > 0 && columns <= SHRT_MAX && *end == '\0' ? (int)columns : 0;
}

int ch__terminal_columns(int fd)
{
    struct winsize size = {0};
    int            limit = columns_variable();

    if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
        return limit > 0 ? limit : 80;
    return limit > 0 && limit < size.ws_col ? limit : size.ws_col;
}

bool ch__write_all(int fd, const char *text, size_t n)
{
    while (n > 0) {
        ssize_t put = write(fd, text, n);

        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return false;
        text += put;
        n -= (size_t)put;
    }
    return true;
}

/* ---- the live line ---- */

enum { LIVE_TEXT = 4096, LIVE_WIDTH = 512 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects live and the output */
static struct {
    int  fd;
    bool can_erase;
    int  width, columns; /* of the drawn text; of the window when it was drawn */
    char text[LIVE_TEXT];
} live;
static atomic_bool is_owned, is_drawn; /* atomic, because ch__live_leave has no lock */

/* Writes everything with a single call, so that output of other processes is not in between.
 * Errors are ignored, because no caller can handle them. */
static void put(const char *before, const char *text, const char *after)
{
    char out[LIVE_TEXT + LIVE_WIDTH + 64];
    int  n = snprintf(out, sizeof(out), "%s%s%s", before, text, after);

    if (n > 0)
        (void)ch__write_all(live.fd, out,
                            (size_t)n < sizeof(out) ? (size_t)n : sizeof(out) - 1);
}

/* Erases the live line. If the terminal cannot erase, overwrites it with blanks. */
static void erase(void)
{
    char blanks[LIVE_WIDTH + 4];

    if (live.can_erase)
        put("\r\033[J", "", "");
    else if (snprintf(blanks, sizeof(blanks), "\r%*s\r", live.width, "") > 0)
        put(blanks, "", "");
}

#define NO_WRAP "\033[?7l"
#define WRAP    "\033[?7h"

/* Draws the live line. If the window has not been resized, overwrites the old text, because
 * erasing first would flicker. Turns line wrapping off meanwhile: if the window has become
 * narrower since its width was read, the end of the text is cut. With wrapping it would
 * continue on the next row, which is never erased. */
static void draw(bool is_resized)
{
    if (!live.can_erase) {
        erase();
        put("", live.text, "\r");
    } else if (is_resized) {
        put("\r\033[J" NO_WRAP, live.text, WRAP "\r");
    } else {
        put("\r" NO_WRAP, live.text, WRAP "\033[K\r");
    }
}

bool ch__live_set(int fd, bool can_erase)
{
    bool is_ours;

    pthread_mutex_lock(&lock);
    is_ours = !atomic_load(&is_owned);
    if (is_ours) {
        live.fd = fd;
        live.can_erase = can_erase;
        live.width = live.columns = 0;
        live.text[0] = '\0';
        atomic_store(&is_drawn, false);
        atomic_store(&is_owned, true);
    }
    pthread_mutex_unlock(&lock);
    return is_ours;
}

void ch__live_draw(const char *text, int width, int columns)
{
    bool is_resized;

    pthread_mutex_lock(&lock);
    is_resized = columns != live.columns;
    snprintf(live.text, sizeof(live.text), "%s", text);
    live.columns = columns;
    atomic_store(&is_drawn, true);
    draw(is_resized);
    live.width = width < LIVE_WIDTH ? width : LIVE_WIDTH;
    pthread_mutex_unlock(&lock);
}

void ch__live_end(const char *text)
{
    pthread_mutex_lock(&lock);
    if (text != NULL) {
        erase();
        put("", text, "\n");
    } else if (atomic_load(&is_drawn)) {
        put("\n", "", "");
    }
    atomic_store(&is_drawn, false);
    atomic_store(&is_owned, false);
    pthread_mutex_unlock(&lock);
}

void ch__live_hide(void)
{
    pthread_mutex_lock(&lock);
    if (atomic_load(&is_drawn))
        erase();
}

void ch__live_show(void)
{
    if (atomic_load(&is_drawn))
        draw(true);
    pthread_mutex_unlock(&lock);
}

void ch__print_above(int fd, const char *text, size_t n)
{
    ch__live_hide();
    (void)ch__write_all(fd, text, n);
    ch__live_show();
}

void ch__live_leave(void)
{
    if (atomic_load(&is_drawn))
        (void)ch__write_all(live.fd, "\n", 1);
}
