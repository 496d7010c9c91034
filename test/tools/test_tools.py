#!/usr/bin/env python3
"""test_tools.py -- each check of tools/ passes on a valid tree and fails on the fault that it detects.

SPDX-License-Identifier: Apache-2.0
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..'))
# Sections of the texts of which only the number of statements is known (tools/check-conformance).
COUNTED = ('TOP', 'ASG', 'TPR', 'SYS', 'TPS', 'TPN', 'TPV', 'ANN', 'TPD', 'TPI', 'HST', 'DYN')
SPDX = '/* SPDX-License-Identifier: Apache-2.0 */\n'


def run(tool, tree, *args):
    """Returns the exit code and output of tools/<tool> in a tree of these files."""
    with tempfile.TemporaryDirectory() as top:
        for path, text in tree.items():
            os.makedirs(os.path.join(top, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(top, path), 'w', encoding='utf-8') as f:
                f.write(text)
        done = subprocess.run([os.path.join(ROOT, 'tools', tool), *args], cwd=top, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        return done.returncode, done.stdout


class Checks(unittest.TestCase):
    def passes(self, tool, tree, *args, said=''):
        self.assertEqual(run(tool, tree, *args), (0, said))

    def fails(self, tool, tree, *said):
        code, out = run(tool, tree)
        self.assertEqual(code, 1, out)
        for words in said:
            self.assertIn(words, out)

    def test_layers_go_down(self):
        self.passes('check-layers', {
            'src/tensor/a.c': '#include "base/mem.h"\n#include "cohort/tensor.h"\n',
            'src/spmd/a.c': '#include "collective/group.h"\n#include "ops/ops.h"\n',
            'src/graph/a.c': '#include "graph/plan.h"\n',
            'src/cohort.c': '#include "strategy/strategy.h"\n',
            'src/kernel/a.c': '#include <oneapi/dnnl/dnnl.h>\n',
            'bench/a.c': '#include "bench.h"\n', 'bench/bench.h': ''})

    def test_layers_refuse_up_sideways_and_unknown(self):
        up = '#include "tensor/tensor.h"\n'
        self.fails('check-layers', {'src/base/a.c': '\n' + up}, 'src/base/a.c:2: base may not')
        self.fails('check-layers', {'src/graph/a.c': '#include "kernel/gemm.h"\n'}, 'graph may not')
        self.fails('check-layers', {'src/net/a.h': '#include "spmd/mesh.h"\n'}, 'net may not')
        self.fails('check-layers', {'src/util/a.c': ''}, 'no module "util"')
        self.fails('check-layers', {'src/base/a.c': '#include "mem.h"\n'}, 'say its module')

    def test_layers_keep_private_headers_in_their_module(self):
        self.fails('check-layers', {'src/ops/a.c': '#include "graph/plan.h"\n'}, '"graph/plan.h" is private')
        self.fails('check-layers', {'src/strategy/a.c': '#include "job/server/values.h"\n'}, 'is private')
        self.fails('check-layers', {'src/fit/a.c': '#include "strategy/var.h"\n'}, 'is private')

    def test_layers_keep_engines_and_insides_apart(self):
        self.fails('check-layers', {'src/ops/a.c': '#include <dnnl.h>\n'}, 'behind kernel')
        self.fails('check-layers', {'examples/a.c': '#include "base/mem.h"\n'}, 'not public')
        self.fails('check-layers', {'include/cohort/a.h': '#include <pthread.h>\n'}, 'pthread.h')

    def test_layers_keep_threads_and_clocks_out_of_state_machines(self):
        for module in ('job', 'cluster'):
            for header in ('<pthread.h>', '<time.h>', '"base/thread.h"'):
                self.fails('check-layers', {f'src/{module}/a.c': f'#include {header}\n'}, f'{module} has no threads')
            for call in ('sleep(1)', 'clock_gettime(c, &t)', 'time(NULL)', 'pthread_create(t)', 'getrandom(p, 1, 0)'):
                self.fails('check-layers', {f'src/{module}/a.c': f'int x = {call};\n'},
                           f'{module} may not call {call.split("(")[0]}')
        self.passes('check-layers', {'src/net/a.c': '#include <pthread.h>\n#include "base/thread.h"\n',
                                     'src/job/a.c': '#include <unistd.h>\nint next_time(x);\n/* sleep(1) */\n'})

    def test_banned_sees_calls_and_not_mentions(self):
        self.passes('check-banned', {
            'src/ops/a.c': '/* free(p), exit(1) */ t->free(p); s = "malloc(3)"; ch__free(p);\n',
            'src/base/mem.c': 'p = malloc(3);\n', 'src/base/config.c': 'getenv("A");\n',
            'test/ops/test_a.c': 'free(malloc(3)); printf("a");\n'})
        for call in ('malloc(3)', 'free (p)', 'strdup(s)', 'abort()', 'exit(1)', 'printf("a")',
                     'getenv("A")', 'strcpy(a, b)', 'alloca(3)', 'fputs("a", stderr)'):
            self.fails('check-banned', {'src/ops/a.c': f'int f(void) {{ {call}; }}\n'},
                       f'src/ops/a.c:1: {call.split("(")[0].strip()}' if 'std' not in call else '')
        self.fails('check-banned', {'test/ops/test_a.c': 'usleep(10);\n'}, 'usleep')
        self.fails('check-banned', {'bench/a.c': 'sprintf(a, "b");\n'}, 'sprintf')

    def test_text(self):
        self.passes('check-text', {'src/a.c': SPDX, 'README.md': 'text\n'})
        self.fails('check-text', {'src/a.c': 'int a;\n'}, 'no line "SPDX')
        for line in ('/* TODO: later */', '/* FIXME */', 'int a; ', '/home/me/a'):
            self.fails('check-text', {'src/a.c': SPDX + line + '\n'}, 'src/a.c:2')
        self.fails('check-text', {'src/a.c': SPDX + 'int a;'}, 'newline')
        self.passes('check-text', {'src/a.c': SPDX + '/* TODO(#12): later */\n'})
        self.passes('check-text', {'doc/guide/a.md': 'a' * 160 + '\n|' + 'a' * 300 + '\n'})
        self.fails('check-text', {'doc/guide/a.md': 'a' * 161 + '\n'}, 'a.md:1: 161 columns')

    def test_headers_stand_alone(self):
        guard = '#ifndef A_H\n#define A_H\n#include <stddef.h>\nsize_t f(void);\n#endif\n'
        umbrella = '#include "cohort/a.h"\n'
        self.passes('check-headers',
                    {'include/cohort/a.h': guard, 'include/cohort/cohort.h': umbrella})
        for fault in ('size_t f(void);\n', 'struct a { int b; };\n', 'int f(int class);\n',
                      'static inline void *f(void *a) { char *b = a; return b; }\n'):
            self.fails('check-headers',
                       {'include/cohort/a.h': fault, 'include/cohort/cohort.h': umbrella})
        self.fails('check-headers', {'include/cohort/a.h': guard, 'include/cohort/cohort.h': '\n'},
                   'does not include')

    def test_symbols_are_those_declared(self):
        header = ('#define CH_API __attribute__((visibility("default")))\n'
                  'CH_API int ch_a(int,\n    int);\n'
                  'CH_API __attribute__((format(printf, 1, 2))) const char *ch_b(const char *, ...);\n')
        a, b = 'int ch_a(int x, int y) { return x + y; }\n', 'char *ch_b(char *x) { return x; }\n'
        for body, said in ((a + b, None), (a, 'ch_b: declared'),
                           (a + b + 'void c(void) {}\n', 'c: exported')):
            with tempfile.TemporaryDirectory() as build:
                os.mkdir(f'{build}/src')
                subprocess.run(['gcc', '-shared', '-fPIC', '-x', 'c', '-', '-o',
                                f'{build}/src/libcohort.so'], input=body, text=True, check=True)
                code, out = run('check-symbols', {'include/cohort/cohort.h': header}, build)
                self.assertEqual(code, 1 if said else 0, out)
                self.assertIn(said or '', out)

    def test_readme_shows_what_runs(self):
        page = 'Text.\n\n<!-- example: a.c -->\n```c\nint a;\n```\n'
        self.passes('check-readme', {'README.md': page, 'a.c': SPDX + 'int a;\n'})
        self.fails('check-readme', {'README.md': page, 'a.c': SPDX + 'int b;\n'}, 'differs from a.c')
        self.fails('check-readme', {'README.md': page}, 'no a.c')
        self.fails('check-readme', {'README.md': '<!-- example: a.c -->\n'}, 'without a block')

    def test_readme_has_the_modules_of_the_layers(self):
        tree = {'src/base/a.c': '', 'src/net/a.c': '', 'src/main.c': ''}
        code, table = run('check-layers', tree, '--table')
        self.assertEqual(code, 0)
        self.assertEqual([line.split('|')[0].strip() for line in table.splitlines()], ['net', 'base'])

        def page(text):
            return {**tree, 'README.md': '<!-- modules -->\n\n' + ''.join(f'    {line}\n' for line in text.splitlines())}

        self.passes('check-readme', page(table))
        self.fails('check-readme', page(table.replace('net', 'ckpt')), 'not that of tools/check-layers')

    def test_prose_has_words_of_the_glossary_and_names_subjects(self):
        def file(text, path='src/base/a.c'):
            return {path: text}

        self.passes('check-prose', file('/* Returns the number of workers. */\nint n;\n'))
        self.fails('check-prose', file('int n_belts;\n'), 'src/base/a.c:1: n_belts: doc/glossary.md')
        self.passes('check-prose', file('bool ch_cluster_is_chief;\nint n_round_trips;\n'))
        self.fails('check-prose', file('/* The task is\n * told. */\nint n;\n'), 'src/base/a.c:1: "is told"')
        self.fails('check-prose', file('int n; /* ' + 'a word ' * 13 + '*/\n'), 'src/base/a.c:1: 103 columns')
        self.fails('check-prose', file('/* Returns a word. */\n' + 'int n;\n' * 201), 'opens with a paragraph')
        self.passes('check-prose', file('/* ' + 'Returns a word. ' * 5 + '\n' + ' * Again a word.\n' * 5 + ' */\n' + 'int n;\n' * 201))
        what = '/* ' + '\n * '.join(['What the caller wants is the number of workers here.'] * 120) + ' */\n'
        self.fails('check-prose', file(what), 'of 1,000 words of comments are what')
        self.fails('check-prose', file('/* The task is told. */\n', 'examples/a.c'), 'examples/a.c:1: "is told"')
        good = '/* ' + '\n * '.join(['Returns the number of workers of the group here.'] * 900) + ' */\n'
        self.fails('check-prose', {'src/base/a.c': good, 'examples/a.c': what}, 'examples: 100.0 of 1,000 words of comments are what')
        self.fails('check-prose', {'src/base/a.h': 'struct ch_a {\n};\n', 'src/net/a.h': 'struct ch_a {\n};\n'},
                   'ch_a is defined in src/base/a.h too')
        test = 'static void %s(void **state)\n{\n}\nint main(void)\n{\n    cmocka_unit_test(%s);\n}\n'
        self.fails('check-prose', file(test % ('it_works', 'it_works'), 'test/a/test_a.c'), 'begin with the subject')
        same = test % ('shape_is_kept', 'shape_is_kept')
        self.fails('check-prose', {'test/a/test_a.c': same, 'test/b/test_b.c': same}, 'is in test/a/test_a.c too')

    def test_examples_are_short_and_listed(self):
        tree = {'examples/a.c': 'int a;\n' * 120, 'examples/b.cc': 'int b;\n', 'examples/c.h': '',
                'examples/README.md': '[a](a.c), [b.cc](b.cc) and `c.h`\n',
                'examples/meson.build': "foreach name : ['a']\nexecutable('b', 'b.cc')\n"}
        self.passes('check-examples', tree)
        self.passes('check-examples', {'README.md': ''})
        self.fails('check-examples', {**tree, 'examples/a.c': 'int a;\n' * 121}, '121 lines')
        self.fails('check-examples', {**tree, 'examples/d.c': '', 'examples/e.h': ''},
                   'does not list d.c', 'does not run d.c', 'does not name e.h')
        self.fails('check-examples', {**tree, 'examples/README.md': '[a](a.c) [z](z.c) [b](b.cc)'},
                   'lists z.c, which is not there')

    def test_snippets_compile_behind_the_prelude(self):
        tree = {'include/cohort/a.h': 'int ch_a(void);\n',
                'test/doc/prelude.h': '#include "cohort/a.h"\nstatic int rc;\n'}

        def page(*blocks):
            return {**tree, 'doc/guide/a.md': 'Text.\n\n' + '\n'.join(blocks)}

        def c(text):
            return f'```c\n{text}\n```\n'

        declared = c('static int one(void)\n{\n    return ch_a();\n}')
        self.passes('compile-snippets', page(declared, c('rc = one();')))
        self.passes('compile-snippets', page(c('#include <stdio.h>\nint main(void)\n{\n    return 0;\n}')))
        self.passes('compile-snippets', page(declared, '<!-- c: anew -->\n' + declared))
        self.passes('compile-snippets', page(c('rc = 1;'), '<!-- c: none -->\n' + c('...')))
        self.fails('compile-snippets', page(declared, declared), 'a.md', 'one')
        self.fails('compile-snippets', page('\n', c('rc = 0;\nrc = two();')), 'doc/guide/a.md:7:')
        self.fails('compile-snippets', page(c('rc = 1;'), 'Call `ch_b`.'), 'no header has ch_b')
        self.fails('compile-snippets', page('<!-- c: nonsense -->\n' + c('rc = 1;')), 'nonsense')
        self.fails('compile-snippets', page('```c\nrc = 1;\n'), 'does not end')

    def test_manual_pages_have_what_headers_say(self):
        header = ('/* cohort/a.h -- numbers.\n *\n *     x = ch_a(1);\n *\n * Text of `it`.\n *\n'
                  ' *   - An item,\n *     and more.\n *\n * SPDX */\n#ifndef COHORT_A_H\n#define COHORT_A_H\n'
                  '/* ---- first ---- */\n\n/* Of both. */\nCH_API CH_MUST_CHECK ch_status ch_a(int x,\n'
                  '    int y);\nCH_API ch_t *\nch_b(void); /* by itself */\n\ntypedef struct ch_t {\n'
                  '    int a, b; /* numbers */\n    int (*f)(int, int);\n} ch_t;\n#endif\n')
        with tempfile.TemporaryDirectory() as out:
            code, said = run('make-man', {'include/cohort/a.h': header, 'doc/settings.md': '',
                                          'doc/cohort.7.in': '@HEADERS@\n'}, f'{out}/man', '--source', '.')
            self.assertEqual((code, said), (0, ''))
            with open(f'{out}/man/man3/cohort_a.3', encoding='utf-8') as f:
                page = f.read()
            with open(f'{out}/man/man3/ch_t.3', encoding='utf-8') as f:
                self.assertEqual(f.read(), '.so man3/cohort_a.3\n')
        for words in ('cohort_a \\- numbers', 'x = ch_a(1);', 'Text of \\fIit\\fR.', '.SH FIRST', 'Of both.',
                      'An item, and more.', '\\fBch_status ch_a(int x, int y);', '\\fBch_t *ch_b(void);',
                      'by itself', '.I a, b\nnumbers', 'int (*f)(int, int);'):
            self.assertIn(words, page)
        self.assertNotIn('SPDX */', page)

    def test_settings_are_those_of_the_rows(self):
        rows = ('static const value_kind kind_bool = {"true or false", parse_bool};\n'
                'SETTING(fuse, bool, "true", "fuse chains"),\n')
        head = '| variable | takes | default | what it does |\n|---|---|---|---|\n'
        row = '| `COHORT_FUSE` | true or false | `true` | fuse chains |\n'
        tree = {'src/base/config.c': rows}
        self.passes('check-settings', {**tree, 'doc/settings.md': head + row + '\nMore.\n'})
        self.fails('check-settings', {**tree, 'doc/settings.md': head}, 'differs from the rows')
        self.fails('check-settings', {**tree, 'doc/settings.md': 'No.\n'}, 'no table')

    @staticmethod
    def conformance(row='| 1.1.1 | one | `test/x/test_x.c: a` |  |', source='/* 1.1.1: text */\n', **more):
        """Returns a tree with a statement, an example and a test, whose comment is `source`."""
        return {'tools/statements': '# numbers\n1.1.1\nB1\n', 'doc/conformance.md': row + '\n',
                'doc/seed-examples.md': '| B1 | 000:1 |  | later: real processes |\n',
                'test/x/test_x.c': source + 'static void a(void **state)\n{\n}\n', **more}

    def test_statements_have_tests_or_reasons(self):
        said = 'doc/conformance.md: 1 rows, {} with tests\ndoc/seed-examples.md: 1 rows, 0 with tests\n'
        row = '| 1.1.1 | one |  | {} |'
        where = {'doc/why.md': '# Why\n\n## Data and more\n'}
        self.passes('check-conformance', self.conformance(), said=said.format(1))
        for reason in ('cannot occur in C: it has no objects', 'later: real processes', 'later: real TPUs; their cores',
                       'decided otherwise: doc/why.md, Data and more: never'):
            self.passes('check-conformance', self.conformance(row.format(reason), '', **where), said=said.format(0))
        for reason, words in (('', 'neither a test nor a reason'), ('later', 'not a form of reason'),
                              ('later: some day', 'not a form of reason'), ('later: real processes, some', 'not a form'),
                              ('cannot occur', 'not a form of reason'), ('note: by name', 'not a form of reason'),
                              ('decided otherwise: never', 'not a form of reason'),
                              ('decided otherwise: doc/no.md, Data: never', 'doc/no.md has no heading "Data"'),
                              ('decided otherwise: doc/why.md, Data: never', 'doc/why.md has no heading "Data"')):
            self.fails('check-conformance', self.conformance(row.format(reason), '', **where), words)

    def test_a_row_with_tests_may_have_a_reason_for_a_part(self):
        row = '| 1.1.1 | one | `test/x/test_x.c: a` | {} |'
        for reason in ('cannot occur in C: no objects', 'later: real processes; their names'):
            self.assertEqual(run('check-conformance', self.conformance(row.format(reason)))[0], 0)
        self.fails('check-conformance', self.conformance(row.format('later: real processes')), 'must name the part')
        for reason in ('by name', 'note: by name'):
            self.fails('check-conformance', self.conformance(row.format(reason)), 'not a form of reason')

    def test_every_statement_has_exactly_one_row(self):
        row = '| 1.1.1 | one | `test/x/test_x.c: a` |  |'
        later = '| {} | two |  | later: real processes |'
        for number in ('1.1.2', '3.3', 'WR-10b', 'G-1', 'TPU-4.10'):
            more = {'tools/statements': f'1.1.1 {number}\nB1\n'}
            self.fails('check-conformance', self.conformance(**more), f'{number} has no row')
            self.assertEqual(run('check-conformance', self.conformance(f'{row}\n{later.format(number)}', **more))[0], 0)
        self.fails('check-conformance', self.conformance(f'{row}\n{row}'), 'has a second row')
        self.fails('check-conformance', self.conformance(f'{row}\n{later.format("1.1.2")}'), 'no such statement')
        self.fails('check-conformance', self.conformance('| 1.1.1 | one |'), 'four columns', '1.1.1 has no row')

    def test_a_citation_begins_a_comment_of_a_test(self):
        body = 'static void b(void **state)\n{\n    f(); /* 1.1.1 */\n}\n'
        for source in ('/* 1.1.1 */\n', '/* B1, 1.1.1:\n * text */\n'):
            tree = self.conformance(source=source)
            self.assertEqual(run('check-conformance', tree, '--write')[0], 0)
        for source in ('', '/* the table below 1.1.1 */\n', '/* text 1.1.1: text */\n', '/* 1.1.1 */\nint x;\n',
                       '/* 1.1.12: text */\n'):
            self.fails('check-conformance', self.conformance(source=source), 'test/x/test_x.c: a does not cite it')
        self.fails('check-conformance', self.conformance(source='/* 1.1.1: text */\n' + body + '/* 1.1.1 */\n'),
                   'test/x/test_x.c: b cites it and is not listed')
        self.fails('check-conformance', self.conformance(source='/* 1.1.1 */\nint x;\n\n'), 'outside of a test')
        self.fails('check-conformance', self.conformance(source='/* 1.1.1, CS-9 */\n'), 'no statement CS-9')
        for source in ('/* 1.1.1 B1 */\n', '/* 1.1.1 says so */\n', '/* 1.1.1. Text */\n', '/* 1.1.1; B1 */\n'):
            self.fails('check-conformance', self.conformance(source=source), 'begins with a number')

    def test_the_tests_of_a_row_exist(self):
        for tests, words in (('`test/x/test_y.c: a`', 'test/x/test_y.c: a does not cite it'),
                             ('`test/x/test_x.c: b`', 'test/x/test_x.c: b does not cite it'),
                             ('test_x', 'the tests are not'), ('`test/x/test_x.c: a` and more', 'the tests are not')):
            self.fails('check-conformance', self.conformance(f'| 1.1.1 | one | {tests} |  |'), words)

    def test_examples_have_places_and_results(self):
        def tree(row):
            return self.conformance(source='/* 1.1.1, B1 */\n', **{'doc/seed-examples.md': row + '\n'})

        a = '`test/x/test_x.c: a`'
        self.assertEqual(run('check-conformance', tree(f'| B1 | 000:1 001:2 | {a} | {{1 \\| 2}} |'))[0], 0)
        for row, words in ((f'| B1 | here | {a} | 1 |', 'is not page:line'), (f'| B1 | 000:1 | {a} |  |', 'no result'),
                           ('| B1 | 000:1 |  | 1 |', 'is not listed'), ('| B2 | 000:1 |  | 1 |', 'no such statement')):
            self.fails('check-conformance', tree(row), words)

    def test_statements_are_read_from_the_texts(self):
        spec = {'strategies.md': '### 3.3 Kinds\n3.3.1 [T] One.\n| 1.3.1 | a |\n8.1 **Two**\n## 4.1.1 Not.\n',
                'parameter-server.md': '- CS-1. One.\n- WR-10b. Two.\nCS-2. Not.\n', 'tpu.md': '### 4.1 One\n## 5 Not\n',
                'examples.md': "| B2' | 000:1 |\n"}
        code, out = run('check-conformance', {f'spec/{name}': text for name, text in spec.items()}, '--statements', 'spec')
        self.assertEqual(code, 0)
        # Numbers of sections that only have a count of statements do not come from the texts.
        self.assertEqual(sorted(n for line in out.splitlines() if line[0] != '#' for n in line.split()
                                if n.split('-')[0] not in COUNTED),
                         sorted(["3.3", "3.3.1", "1.3.1", "8.1", "CS-1", "WR-10b", "TPU-4.1", "B2'"]))

    def test_names_of_the_pages_have_a_row(self):
        tree = {'tools/seed-names': '# A comment.\nrun\n\nReduceOp\n',
                'doc/guide/from-keras.md': 'Call `ReduceOp`.\n\n| `strategy.run(fn)`, `ReduceOp` | `ch_run` |\n'}
        self.passes('check-names', tree)
        self.fails('check-names', {**tree, 'doc/guide/from-keras.md': '| a | `run`, `ReduceOp` |\n'},
                   'from-keras.md: no row for run', 'no row for ReduceOp')
        self.fails('check-names', {**tree, 'doc/guide/from-keras.md': 'Call `ReduceOp`.\n| `run` | a |\n'},
                   'no row for ReduceOp')
        self.fails('check-names', {**tree, 'doc/guide/from-keras.md': '| `running` or run, `ReduceOp` | |\n'},
                   'no row for run')

    def test_what_nobody_uses_is_not_tested(self):
        header = 'CH_API CH_MUST_CHECK ch_status ch_a(int,\n    int);\nCH_API int ch_b(void);\n'
        uses = 'int ch_a(int, int);\nint main(void) { return ch_a(1, 2); }\n'
        with tempfile.TemporaryDirectory() as build:
            os.mkdir(f'{build}/test')
            subprocess.run(['gcc', '-c', '-x', 'c', '-', '-o', f'{build}/test/a.o'], input=uses,
                           text=True, check=True)
            code, out = run('check-tested', {'include/cohort/a.h': header}, build)
        self.assertEqual(code, 1)
        self.assertEqual(out, 'include/cohort/a.h: ch_b is used by no test, example or bench\n')

    def test_ops_have_a_rule_or_a_reason(self):
        def ops(*lines):
            with tempfile.TemporaryDirectory() as build:
                os.makedirs(f'{build}/test/ops')
                path = f'{build}/test/ops/list_ops'
                with open(path, 'w', encoding='utf-8') as f:
                    f.write("#!/bin/sh\ncat <<'END'\n" + ''.join(line + '\n' for line in lines) + 'END\n')
                os.chmod(path, 0o755)
                return run('check-ops', {'a': ''}, '--list', build)

        good = ('sum\tfactors\t\t\t\t', 'fill\tfactors\tlocal\t\torigin\t', 'rows\t\t\texpand\t\ta number')
        code, out = ops(*good)
        self.assertEqual(code, 0)
        self.assertEqual([line.split() for line in out.splitlines()],
                         [['sum', 'factors'], ['fill', 'factors', 'local', 'origin'], ['rows', 'expand', 'a', 'number']])
        for line, fault in (('a\t\t\t\t\t', 'a: has neither a partition rule'),
                            ('a\tfactors\t\t\t\tso', 'a: has a partition rule, and a reason'),
                            ('a\t\tlocal\t\t\tso', 'a: has `local` without')):
            code, out = ops(*good, line)
            self.assertEqual(code, 1)
            self.assertIn(fault, out)
        self.fails('check-ops', {'a': ''}, 'no build: build/test/ops/list_ops')

    @unittest.skipUnless(shutil.which('clang-format'), 'no clang-format')
    def test_format(self):
        style = {'.clang-format': 'BasedOnStyle: LLVM\n'}
        self.passes('check-format', {**style, 'src/a.c': 'int a;\n'})
        self.fails('check-format', {**style, 'src/a.c': 'int a;\nint  b ;\n'},
                   'src/a.c:2: as clang-format -i src/a.c would have it')

    @unittest.skipUnless(shutil.which('shellcheck'), 'no shellcheck')
    def test_shell(self):
        self.passes('check-shell', {'tools/a': '#!/bin/sh\necho "$1"\n', 'tools/b': 'echo $1\n'})
        self.assertNotEqual(run('check-shell', {'tools/a': '#!/bin/sh\necho $1\n'})[0], 0)

    def test_size_counts_lines_of_functions(self):
        text = 'struct a {\n    int b;\n};\n\nint f(int a,\n      int b)\n{\n    return a;\n}\n'
        code, out = run('size', {'src/ops/a.c': text}, '--long')
        self.assertEqual(code, 0)
        self.assertIn('    5  f  src/ops/a.c:5', out)

    def test_size_counts_functions_that_are_called_once(self):
        define = 'static int {}(int x)\n{{\n    return x;\n}}\n\n'
        text = 'static int late(int x);\n\n' + ''.join(define.format(n) for n in ('once', 'twice', 'listed', 'passed'))
        text += 'static const op table[] = {{.once = listed}};\n\n'
        text += 'int f(int x)\n{\n    call(passed);\n    passed(1);\n    /* once(2) */\n'
        text += '    return once(x) + twice(x) + twice(listed(x)) + late(x);\n}\n\n' + define.format('late')
        code, out = run('size', {'src/ops/a.c': text, 'src/net/a.c': 'int g;\n'}, '--once')
        self.assertEqual(code, 0)
        self.assertRegex(out, r'src/ops .* 40 %\n')  # once and late, of five
        self.assertRegex(out, r'src/net .* -\n')
        self.assertRegex(out, r'the library .* 40 %\n')
        self.assertTrue(out.endswith('src/ops/a.c: late\nsrc/ops/a.c: once\n'), out)


class Report(unittest.TestCase):
    def report(self, *programs):
        rows = [{'name': 'a', 'duration': 0.1, 'returncode': 0, 'stdout': '', **p} for p in programs]
        code, out = run('report-tests', {'log': '\n'.join(map(json.dumps, rows))}, 'log')
        return code, out.splitlines()[-1]

    def test_counts_cases_and_programs(self):
        cases = ('[ RUN      ] a\n[       OK ] a\n[ RUN      ] b\n[  SKIPPED ] b\n'
                 '[  PASSED  ] 1 test(s).\n[  SKIPPED ] 1 test(s), listed below:\n[  SKIPPED ] b\n')
        self.assertEqual(self.report({'result': 'OK', 'stdout': cases}, {'result': 'OK'},
                                     {'result': 'SKIP', 'returncode': 77}),
                         (0, '2 passed, 0 failed, 2 skipped'))

    def test_a_crash_a_failure_and_a_leak_are_failures(self):
        ok = '[ RUN      ] a\n[       OK ] a\n'
        for text, count in ((ok + '[ RUN      ] b\n', '1 passed, 1 failed, 0 skipped'),
                            (ok + '[ RUN      ] b\n[  FAILED  ] b\n[  FAILED  ] b\n',
                             '1 passed, 1 failed, 0 skipped'),
                            (ok, '1 passed, 1 failed, 0 skipped')):
            self.assertEqual(self.report({'result': 'FAIL', 'returncode': 1, 'stdout': text}),
                             (1, count))

    def test_nothing_passed_is_a_failure(self):
        self.assertEqual(self.report({'result': 'SKIP'})[0], 1)

    def test_several_runs_are_added_up_and_told_apart(self):
        def log(result):
            return json.dumps({'name': 'cohort:a', 'duration': 0.1, 'returncode': 1, 'result': result})
        code, out = run('report-tests', {'build/meson-logs/testlog.json': log('OK'),
                                         'build-release/meson-logs/testlog-base.json': log('FAIL')},
                        'build/meson-logs/testlog.json', 'build-release/meson-logs/testlog-base.json')
        self.assertEqual((code, out.splitlines()[-1]), (1, '1 passed, 1 failed, 0 skipped'))
        self.assertIn('--- a (build-release at base): fail', out)


class Bench(unittest.TestCase):
    """The benchmark runner, with a program (bench_program.c) whose runs take a millisecond each."""

    def rows(self, *args):
        done = subprocess.run([os.environ['BENCH_PROGRAM'], '--quick', '--json', *args], text=True,
                              capture_output=True, check=False)
        return done.returncode, [json.loads(r) for r in done.stdout.splitlines()], done.stderr

    def test_the_best_setting_of_a_peer_counts(self):
        code, (row,), _ = self.rows('--peers', 'best of two')
        self.assertEqual(code, 0)
        self.assertEqual(set(row), {'name', 'case', 'ours', 'peer', 'peer_name', 'limit', 'unit',
                                    'ratio_peer', 'ratio_limit'})
        self.assertEqual((row['peer_name'], row['unit']), ('quick', 'ms'))
        self.assertAlmostEqual(row['peer'], 10)
        self.assertAlmostEqual(row['ratio_peer'], row['peer'] / row['ours'], places=3)
        self.assertAlmostEqual(row['ratio_limit'], row['limit'] / row['ours'], places=3)

    def test_programs_of_others_run_only_when_asked_for(self):
        _, (row,), _ = self.rows('best of two')
        self.assertIsNone(row['peer'])
        self.assertIsNone(row['ratio_peer'])

    def test_a_higher_rate_is_better(self):
        _, (row,), _ = self.rows('rate')
        self.assertEqual(row['peer_name'], 'in the process')
        self.assertAlmostEqual(row['ratio_peer'], row['ours'] / row['peer'], places=3)

    def test_a_wrong_result_and_a_lost_peer_fail(self):
        code, rows, said = self.rows('wrong')
        self.assertEqual((code, rows), (1, []))
        self.assertIn('void: 1 is not 2', said)
        code, (row,), said = self.rows('--peers', 'lost')
        self.assertEqual((code, row['peer']), (1, None))
        self.assertIn('gone did not answer', said)

    def test_a_peer_comes_to_the_same_or_the_row_is_void(self):
        code, (row,), _ = self.rows('--peers', 'agrees')
        self.assertEqual((code, row['peer_name']), (0, 'other'))
        code, rows, said = self.rows('--peers', 'differs')
        self.assertEqual((code, rows), (1, []))
        self.assertIn('void: the result is 2, and 2.02 of other', said)

    def test_zero_is_a_figure(self):
        _, (row, _), _ = self.rows('bytes')
        self.assertEqual((row['ours'], row['ratio_limit']), (0, 1))

    def test_figures_line_up_when_a_name_is_long(self):
        out = subprocess.run([os.environ['BENCH_PROGRAM'], '--quick', 'bytes'], text=True, check=True,
                             stdout=subprocess.PIPE).stdout.splitlines()
        head, rows = out[1], [line for line in out if ' B ' in line]
        self.assertEqual(len(rows), 2)
        self.assertEqual(len({row.index(' B ') for row in rows}), 1)
        for row in rows:  # its last column is the peer's name, "-"
            self.assertEqual(row.rindex('-'), head.rindex('peer'))


if __name__ == '__main__':
    sys.exit(unittest.main(verbosity=0))
