/* base/terminal.h -- properties of a terminal, and the live line, which is redrawn during work.
 *
 * A process has at most one live line. The cursor stays in its first column. If the window is
 * made narrower and the terminal wraps the line, all of it is behind the cursor and can be
 * erased without touching the rows above. Line wrapping is off while the live line is drawn, so
 * that the cursor stays on its row. All other output, such as the log, is printed above the
 * live line.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_TERMINAL_H
#define BASE_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>

typedef struct ch_terminal {
    bool can_erase; /* fd is a terminal, TERM is set and is not "dumb" */
    bool has_color; /* can_erase, and NO_COLOR is not set */
} ch_terminal;

/* Returns the properties of a file descriptor. Reads the environment. */
ch_terminal ch__terminal(int fd);
/* Returns true if the locale is UTF-8, by the first of LC_ALL, LC_CTYPE and LANG that is set.
 * The program need not have called setlocale. */
bool ch__locale_is_utf8(void);
/* Returns the number of columns to use: COLUMNS, but at most the current width of the window,
 * because a shell may have set COLUMNS before the window was resized. Returns 80 if neither is
 * known. */
int ch__terminal_columns(int fd);

/* Writes all bytes and continues after signals. Returns false if not all bytes were written. */
bool ch__write_all(int fd, const char *text, size_t n);

/* Acquires the live line. Returns false if it is in use. */
bool ch__live_set(int fd, bool can_erase);
/* Draws the live line: text of `width` columns without newlines, in a window of `columns`
 * columns. */
void ch__live_draw(const char *text, int width, int columns);
/* Releases the live line. Replaces it by `text`, which may have several lines; if `text` is
 * NULL, the line stays as it was drawn. */
void ch__live_end(const char *text);

/* Erases the live line and draws it again. Between the two calls the caller may print, and no
 * other thread draws or prints above the line. Every ch__live_hide must be followed by a
 * ch__live_show. */
void ch__live_hide(void);
void ch__live_show(void);
/* Writes text above the live line. */
void ch__print_above(int fd, const char *text, size_t n);

/* Moves the cursor below the live line, if it is drawn. Async-signal-safe: for a signal handler
 * that ends the process. */
void ch__live_leave(void);

#endif
