/* test/fit/test_progress_terminal.c -- the live line on a pseudo-terminal, as a user sees it.
 *
 * The bytes are drawn on a simulated screen (screen). A line of the screen keeps its length: if
 * the window is narrower, the line occupies several rows, as on terminals that wrap lines again
 * when they are resized. So the tests detect a write beyond the window's width, and an erase of
 * only some rows of a wrapped line.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "progress_help.h"

#include "../base/pseudo_terminal.h"
#include "base/log.h"
#include "base/terminal.h"
#include "cohort/dataset.h"

/* ---- a screen ---- */

enum { LINES = 64, CELLS = 400, CELL = 5 };

typedef struct {
    int  reader, writer; /* the two ends of the terminal */
    int  columns, line, column;
    bool has_color, is_narrowed,
        cuts;                      /* cuts: text beyond the window is lost instead of wrapped */
    char cell[LINES][CELLS][CELL]; /* a character; "": none */
} screen;

static void resize(screen *s, int columns)
{
    struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};

    s->columns = columns;
    assert_int_equal(ioctl(s->reader, TIOCSWINSZ, &size), 0);
}

static screen *open_screen(int columns)
{
    int     reader, writer;
    screen *s;

    t_terminal(&reader, &writer);
    s = calloc(1, sizeof(*s));
    assert_non_null(s);
    s->reader = reader;
    s->writer = writer;
    resize(s, columns);
    return s;
}

static void close_screen(screen *s)
{
    close(s->reader);
    close(s->writer);
    free(s);
}

/* Erases to the end of the row of the window, or to the end of the screen. */
static void erase(screen *s, bool to_end)
{
    int row_end = s->columns > 0 ? (s->column / s->columns + 1) * s->columns : CELLS;

    for (int i = s->column; i < CELLS && (to_end || i < row_end); i++)
        s->cell[s->line][i][0] = '\0';
    for (int i = s->line + 1; to_end && i < LINES; i++)
        for (int j = 0; j < CELLS; j++)
            s->cell[i][j][0] = '\0';
}

/* Executes a control sequence. Returns its number of bytes. */
static int obey(screen *s, const char *text)
{
    int n = 2;

    assert_int_equal(text[1], '[');
    if (strncmp(text, "\033[?7", 4) == 0) {
        assert_true(text[4] == 'h' || text[4] == 'l');
        s->cuts = text[4] == 'l';
        return 5;
    }
    while ((text[n] >= '0' && text[n] <= '9') || text[n] == ';')
        n++;
    if (text[n] == 'm')
        s->has_color = true;
    else if (text[n] == 'K' || text[n] == 'J')
        erase(s, text[n] == 'J');
    else
        fail_msg("a sequence that ends in %c", text[n]);
    return n + 1;
}

static int put(screen *s, const char *text)
{
    int n = 1;

    while (((unsigned char)text[n] & 0xc0) == 0x80)
        n++;
    if (s->column >= s->columns && s->cuts && s->is_narrowed)
        return n;
    if (s->column >= s->columns)
        fail_msg("column %d of %d was written to", s->column, s->columns);
    snprintf(s->cell[s->line][s->column++], CELL, "%.*s", n, text);
    return n;
}

static void show(screen *s, const char *text)
{
    while (*text != '\0') {
        if (*text == '\033') {
            text += obey(s, text);
        } else if (*text == '\r' || *text == '\n') {
            s->column = *text == '\r' ? 0 : s->column;
            s->line += *text++ == '\n';
            assert_true(s->line < LINES);
        } else {
            text += put(s, text);
        }
    }
}

/* Reads all output so far. Because terminals are asynchronous, a bell is sent after it and
 * waited for. */
static void look(screen *s)
{
    static char text[65536];
    size_t      n = 0;

    assert_int_equal(write(s->writer, "\a", 1), 1);
    while (n == 0 || text[n - 1] != '\a') {
        ssize_t got = read(s->reader, text + n, sizeof(text) - 1 - n);

        assert_true(got > 0);
        n += (size_t)got;
    }
    text[n - 1] = '\0';
    show(s, text);
}

static const char *line_of(const screen *s, int line)
{
    static char text[CELLS * CELL];
    size_t      n = 0;

    text[0] = '\0';
    for (int i = 0; i < CELLS && s->cell[line][i][0] != '\0'; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s", s->cell[line][i]);
    return text;
}

static void expect(screen *s, int line, const char *want)
{
    look(s);
    assert_string_equal(line_of(s, line), want);
}

/* ---- contents of the line ---- */

static void progress_bar_is_redrawn_and_stays_after_the_end(void **state)
{
    screen      *s = open_screen(100);
    ch_training  t = {.epochs = 2, .epoch_steps = 20, .validation_steps = 3};
    ch_callback *c = t_progress(CH_PROGRESS_AUTO, s->writer);

    t_tell(c, &t, CH_ON_BEGIN);
    t_begin_epoch(c, &t);
    expect(s, 0, "Epoch 1/2");
    expect(s, 1, "  0/20 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 0s");
    t_steps(c, &t, 10, 100);
    expect(s, 1,
           " 10/20 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━ ETA 1s 100ms/step 320 ex/s - loss: 0.1000 - "
           "accuracy: 0.5000");
    assert_int_equal(s->column, 0); /* there a narrower window does not matter */
    assert_true(s->has_color);
    t_steps(c, &t, 10, 100);
    t_tell(c, &t, CH_ON_VALIDATION_BEGIN);
    t_pass(1000);
    t.validation_step = 2;
    t_tell(c, &t, CH_ON_VALIDATION_STEP);
    expect(s, 1,
           " 20/20 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 3s 100ms/step 320 ex/s - validating 2/3 - "
           "loss: 0.0500");
    t_log(&t, "val_loss", 0.25);
    t_tell(c, &t, CH_ON_EPOCH_END);
    expect(s, 1,
           " 20/20 ━━━━━━━━━━━━ 3.0s 100ms/step 320/s - loss: 0.0500 - accuracy: 0.5000 - "
           "val_loss: 0.2500");
    t.epoch = 1;
    t_begin_epoch(c, &t);
    expect(s, 2, "Epoch 2/2");
    expect(s, 3, "  0/20 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 0s");
    t_steps(c, &t, 5, 100);
    ch_training_stop(&t, "interrupted");
    t_tell(c, &t, CH_ON_EPOCH_END);
    t_tell(c, &t, CH_ON_END);
    expect(s, 3,
           "  5/20 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 0.5s 100ms/step 320 ex/s - loss: 0.0400 - "
           "accuracy: 0.5000");
    expect(s, 4, "Stopped: interrupted");
    t_drop(c, &t);
    close_screen(s);
    (void)state;
}

static void progress_bar_is_ascii_without_color_when_the_environment_says_so(void **state)
{
    screen      *s = open_screen(80);
    ch_training  t = {.epochs = 1, .epoch_steps = 1000};
    ch_callback *c;

    setenv("NO_COLOR", "1", 1);
    setenv("LC_ALL", "C", 1);
    c = t_progress(CH_PROGRESS_AUTO, s->writer);
    t_tell(c, &t, CH_ON_BEGIN);
    t_begin_epoch(c, &t);
    t_steps(c, &t, 500, 2);
    expect(s, 1,
           "  500/1000 [==>..] ETA 1s 2.0ms/step 16.0k/s - loss: 0.0020 - accuracy: 0.5000");
    assert_false(s->has_color);
    t_tell(c, &t, CH_ON_END); /* after a failure the line stays as it is */
    expect(s, 1,
           "  500/1000 [==>..] ETA 1s 2.0ms/step 16.0k/s - loss: 0.0020 - accuracy: 0.5000");
    assert_int_equal(s->line, 2);
    t_drop(c, &t);
    close_screen(s);
    t_environment();
    (void)state;
}

static void progress_writes_lines_to_a_terminal_that_cannot_erase(void **state)
{
    for (int i = 0; i < 2; i++) {
        screen      *s = open_screen(80);
        ch_training  t = {.epochs = 1, .epoch_steps = 2};
        ch_callback *c;

        if (i == 0)
            setenv("TERM", "dumb", 1);
        else
            unsetenv("TERM");
        c = t_progress(CH_PROGRESS_AUTO, s->writer);
        t_tell(c, &t, CH_ON_BEGIN);
        t_begin_epoch(c, &t);
        t_steps(c, &t, 2, 100);
        t_tell(c, &t, CH_ON_EPOCH_END);
        look(s);
        assert_memory_equal(line_of(s, 0), "Epoch 1/1 - 2/2 - 0.2s - 100ms/step", 35);
        assert_int_equal(s->line, 1);
        t_drop(c, &t);
        close_screen(s);
        t_environment();
    }
    (void)state;
}

static void progress_bar_moves_when_steps_are_unknown(void **state)
{
    screen      *s = open_screen(100);
    ch_training  t = {.epochs = 1, .epoch_steps = CH_UNKNOWN};
    ch_callback *c;

    setenv("NO_COLOR", "1", 1);
    c = t_progress(CH_PROGRESS_BAR, s->writer);
    t_tell(c, &t, CH_ON_BEGIN);
    t_begin_epoch(c, &t);
    t_steps(c, &t, 2, 100);
    expect(s, 1,
           " 2 ──━━━━━━━━──────────────────── 0s 100ms/step 320 ex/s - loss: 0.5000 - "
           "accuracy: 0.5000");
    t_steps(c, &t, 1, 100);
    expect(s, 1,
           " 3 ───━━━━━━━━─────────────────── 0s 100ms/step 320 ex/s - loss: 0.3333 - "
           "accuracy: 0.5000");
    t_tell(c, &t, CH_ON_EPOCH_END);
    expect(s, 1,
           " 3 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 0.3s 100ms/step 320 ex/s - loss: 0.3333 - "
           "accuracy: 0.5000");
    t_drop(c, &t);
    close_screen(s);
    t_environment();
    (void)state;
}

static void progress_bar_puts_metrics_that_do_not_fit_on_the_next_line(void **state)
{
    screen      *s = open_screen(80);
    ch_training  t = {.epochs = 1, .epoch_steps = 10};
    ch_callback *c = t_progress(CH_PROGRESS_BAR, s->writer);

    t_tell(c, &t, CH_ON_BEGIN);
    t_begin_epoch(c, &t);
    t_steps(c, &t, 10, 100);
    t_log(&t, "val_loss", 0.25);
    t_log(&t, "val_accuracy", 0.75);
    t_tell(c, &t, CH_ON_EPOCH_END);
    expect(s, 1, " 10/10 ━━━━━━━━━━━ 1.0s 100ms/step 320/s - loss: 0.1000 - accuracy: 0.5000");
    expect(s, 2, "   val_loss: 0.2500 - val_accuracy: 0.7500");
    assert_int_equal(s->line, 3);
    t_drop(c, &t);
    close_screen(s);
    (void)state;
}

/* The line of the demo: when space is short, the rate is kept rather than the bar. */
static void progress_bar_drops_parts_when_columns_are_few(void **state)
{
    static const struct {
        int         columns;
        const char *want;
    } at[] = {
        {110,
         " 200/469 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ ETA 13s 50ms/step 2.56k ex/s - loss: 0.0050 - "
         "sparse_accuracy: 0.9000"},
        {90, " 200/469 ━━━━━━━━━━━━ ETA 13s 50ms/step 2.56k/s - loss: 0.0050 - "
             "sparse_accuracy: 0.9000"},
        {80, " 200/469 ━━╸━━━ ETA 13s 50ms/step 2.56k/s loss: 0.0050 sparse_accuracy: 0.9000"},
        {74, " 200/469 ETA 13s 50ms/step 2.56k/s loss: 0.0050 sparse_accuracy: 0.9000"},
        {60, " 200/469 ━━━━━━━━ ETA 13s 50ms/step 2.56k/s - loss: 0.0050"},
        {50, " 200/469 ETA 13s 50ms/step 2.56k/s loss: 0.0050"},
        {46, " 200/469 ETA 13s 50ms/step - loss: 0.0050"},
    };

    for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
        screen      *s = open_screen(at[i].columns);
        ch_training  t = {.epochs = 1, .epoch_steps = 469};
        ch_callback *c = t_progress(CH_PROGRESS_BAR, s->writer);

        t_tell(c, &t, CH_ON_BEGIN);
        t_begin_epoch(c, &t);
        for (t.epoch_step = 1; t.epoch_step <= 200; t.epoch_step++) {
            t_pass(50);
            t.epoch_examples += 128;
            t_log(&t, "loss", 1.0 / (double)t.epoch_step);
            t_log(&t, "sparse_accuracy", 0.9);
            t_tell(c, &t, CH_ON_STEP);
            look(s); /* the buffer of a terminal is small */
        }
        expect(s, 1, at[i].want);
        t_drop(c, &t);
        close_screen(s);
    }
    (void)state;
}

static void progress_bar_of_an_evaluation_is_one_line(void **state)
{
    screen      *s = open_screen(60);
    ch_training  t = {.is_evaluation = true, .validation_steps = 4};
    ch_callback *c = t_progress(CH_PROGRESS_BAR, s->writer);

    t_tell(c, &t, CH_ON_BEGIN);
    t_tell(c, &t, CH_ON_VALIDATION_BEGIN);
    expect(s, 0, " 0/4 ━━━━━━━━━━━━ 0s");
    t_log(&t, "loss", 0.25);
    t_log(&t, "accuracy", 0.5);
    for (int i = 0; i < 4; i++) {
        t_pass(100);
        t.examples += 32;
        t.validation_step++;
        t_tell(c, &t, CH_ON_VALIDATION_STEP);
    }
    t_tell(c, &t, CH_ON_VALIDATION_END);
    expect(s, 0, "Evaluate");
    expect(s, 1, " 4/4 ━━━━━━━━━━━━ 0.4s 100ms/step 320/s - loss: 0.2500");
    expect(s, 2, "   accuracy: 0.5000");
    t_tell(c, &t, CH_ON_END);
    look(s);
    assert_int_equal(s->line, 3);
    t_drop(c, &t);
    close_screen(s);
    (void)state;
}

/* ---- other output, and a window that is resized ---- */

static void progress_bar_follows_the_width_of_the_window(void **state)
{
    static const int widths[] = {120, 80, 40, 41, 20, 12, 4, 1, 200, 60, 300, 30, 100};
    screen          *s = open_screen(100);
    ch_training      t = {.epochs = 1, .epoch_steps = 100};
    ch_callback     *c = t_progress(CH_PROGRESS_BAR, s->writer);

    t_tell(c, &t, CH_ON_BEGIN);
    t_begin_epoch(c, &t);
    look(s);
    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++) {
        resize(s, widths[i]);
        t_steps(c, &t, 1, 100);
        look(s);
        for (int j = widths[i] > 0 ? widths[i] - 1 : 0; j < CELLS; j++)
            assert_string_equal(s->cell[1][j], ""); /* the last column stays free */
        assert_string_equal(line_of(s, 0), "Epoch 1/1");
        assert_string_equal(line_of(s, 2), "");
        if (widths[i] >= 30)
            assert_non_null(strstr(line_of(s, 1), "/100 "));
        t_steps(c, &t, 1, 100);
        look(s);
    }
    t_tell(c, &t, CH_ON_EPOCH_END);
    look(s);
    assert_int_equal(s->line, 2);
    t_drop(c, &t);
    close_screen(s);
    (void)state;
}

/* The window narrows after its width was read and before the line is drawn: no text may be on a
 * row that is not erased later. */
static void live_line_is_cut_when_the_window_narrows_while_it_is_drawn(void **state)
{
    screen *s = open_screen(60);

    assert_true(ch__live_set(s->writer, true));
    resize(s, 10);
    s->is_narrowed = true;
    ch__live_draw(" 12/20 a line for a window of 60", 32, 60);
    expect(s, 0, " 12/20 a l");
    assert_false(s->cuts);
    assert_true(s->line == 0 && s->column == 0);
    ch__live_draw(" 13/20", 6, 10);
    expect(s, 0, " 13/20");
    ch__live_end(NULL);
    close_screen(s);
    (void)state;
}

static void log_records_are_printed_above_the_progress_bar(void **state)
{
    screen      *s = open_screen(80);
    ch_training  t = {.epochs = 1, .epoch_steps = 10};
    ch_callback *c = t_progress(CH_PROGRESS_BAR, s->writer);
    int          saved = dup(STDERR_FILENO);
    const char  *line =
        "  5/10 ━━━━━╸━━━━━ ETA 0s 100ms/step 320/s - loss: 0.2000 - accuracy: 0.5000";

    t_tell(c, &t, CH_ON_BEGIN);
    t_begin_epoch(c, &t);
    t_steps(c, &t, 5, 100);
    expect(s, 1, line);
    fflush(stderr);
    dup2(s->writer, STDERR_FILENO);
    ch__log(CH_LOG_WARNING, "code", "something");
    dup2(saved, STDERR_FILENO);
    close(saved);
    expect(s, 0, "Epoch 1/1");
    expect(s, 1, "cohort: warning [code]: something");
    expect(s, 2, line);
    t_drop(c, &t); /* in the middle of an epoch: later output is below the line */
    look(s);
    assert_int_equal(s->line, 3);
    close_screen(s);
    (void)state;
}

static void progress_of_a_second_training_writes_lines(void **state)
{
    screen      *s = open_screen(80);
    ch_training  t = {.epochs = 1, .epoch_steps = 10}, other = {.epochs = 1, .epoch_steps = 1};
    ch_callback *c = t_progress(CH_PROGRESS_BAR, s->writer);
    ch_callback *d = t_progress(CH_PROGRESS_BAR, s->writer);

    t_tell(c, &t, CH_ON_BEGIN);
    t_begin_epoch(c, &t);
    t_steps(c, &t, 5, 100);
    t_tell(d, &other, CH_ON_BEGIN);
    t_begin_epoch(d, &other);
    t_steps(d, &other, 1, 100);
    t_tell(d, &other, CH_ON_EPOCH_END);
    t_tell(d, &other, CH_ON_END);
    look(s);
    assert_string_equal(line_of(s, 0), "Epoch 1/1");
    assert_memory_equal(line_of(s, 1), "Epoch 1/1 - 1/1 - 0.1s - 100ms/step", 35);
    assert_memory_equal(line_of(s, 2), "  5/10 ━", 10);
    t_drop(d, &other);
    t_drop(c, &t);
    close_screen(s);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(progress_bar_is_redrawn_and_stays_after_the_end),
        cmocka_unit_test(progress_bar_is_ascii_without_color_when_the_environment_says_so),
        cmocka_unit_test(progress_writes_lines_to_a_terminal_that_cannot_erase),
        cmocka_unit_test(progress_bar_moves_when_steps_are_unknown),
        cmocka_unit_test(progress_bar_puts_metrics_that_do_not_fit_on_the_next_line),
        cmocka_unit_test(progress_bar_drops_parts_when_columns_are_few),
        cmocka_unit_test(progress_bar_of_an_evaluation_is_one_line),
        cmocka_unit_test(progress_bar_follows_the_width_of_the_window),
        cmocka_unit_test(live_line_is_cut_when_the_window_narrows_while_it_is_drawn),
        cmocka_unit_test(log_records_are_printed_above_the_progress_bar),
        cmocka_unit_test(progress_of_a_second_training_writes_lines),
    };

    t_environment();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
