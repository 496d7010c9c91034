/* base/terminal.h -- what a terminal can, and the line of it that is drawn anew while work goes on.
 *
 * One live line at a time in a process. The cursor waits in its first column: when the window is made
 * narrower and the terminal breaks the line, all of it is behind the cursor and can be erased, and nothing
 * above it is touched. While it is drawn the terminal does not break lines: the cursor stays on its row. What others print, the log first of all, goes above the line.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_TERMINAL_H
#define BASE_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>

typedef struct ch_terminal {
    bool can_erase; /* it is one, and TERM is set, and not "dumb" */
    bool has_color; /* the same, and NO_COLOR is not set */
} ch_terminal;

ch_terminal ch__terminal(int fd);
/* Whether LC_ALL, LC_CTYPE or LANG, the first that is set, says UTF-8. Programs need not have called setlocale. */
bool ch__speaks_utf8(void);
/* What COLUMNS says, but no more than there are now: a shell may have set it before the window was resized. What is not known
 * does not count; 80 if neither is. */
int ch__terminal_columns(int fd);

/* All bytes, whatever signals come in between; false: not all. */
bool ch__write_all(int fd, const char *text, size_t n);

/* Takes the live line; false if somebody has it already. */
bool ch__live_set(int fd, bool can_erase);
/* Draws it: `width` columns of text without newlines, on a terminal of `columns`. */
void ch__live_draw(const char *text, int width, int columns);
/* Draws it for the last time, over several lines if it must be, and gives it back. NULL: it stays as it is. */
void ch__live_end(const char *text);

/* Around what is printed above the live line: erases it, and draws it again. Nobody draws in between. */
void ch__live_lift(void);
void ch__live_lower(void);
/* Writes text so. */
void ch__print_above(int fd, const char *text, size_t n);

/* For a signal handler that ends the process: what comes next does not stand in the live line. */
void ch__live_leave(void);

#endif
