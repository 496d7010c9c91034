#!/usr/bin/env python3
"""test_dev.py -- the programs that ./dev runs, and their user.

Each test runs a copy of ./dev in a small tree of its own, as a user without privileges. Stand-ins for
apt-get, dpkg-query, meson, ninja, sudo and ldconfig come first in PATH and write their arguments to a
file. ./dev fresh tries the same commands with the real programs, in a new Debian system.

SPDX-License-Identifier: Apache-2.0
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..'))
NOBODY = 65534  # the user of ./dev if the tests run as root, because permissions do not apply to root

SAY = 'echo "${AS_ROOT-}$(basename "$0") $*" >>"$LOG"\n'
STAND_INS = {
    'apt-get': SAY,
    # ninja -C build-release makes a program of every row, a copy of a stand-in that only writes.
    'ninja': SAY + '''mkdir -p "$2/bench"
set +f
for row in bench/*.c; do
    if ! [ -f "$row" ] || ! grep -q main "$row"; then continue; fi
    cp bin/apt-get "$2/bench/$(basename "$row" .c)"
done
''',
    'sudo': SAY + 'AS_ROOT="root: " exec "$@"\n',
    # meson setup DIR makes the folder that ./dev keeps the options in.
    'meson': SAY + 'if [ "$1" = setup ]; then mkdir -p "$2"; fi\n',
    # The loader searches $LOADER_FOLDER.
    'ldconfig': SAY + 'case $* in *-v*) echo "$LOADER_FOLDER: (from /etc/ld.so.conf:1)" ;; esac\n',
    'dpkg': 'echo amd64\n',
    # $INSTALLED has words PACKAGE:ARCHITECTURE; "*" has every package for amd64.
    'dpkg-query': '''for word in $INSTALLED; do
    case $word in "*" | "$4":*) ;; *) continue ;; esac
    architecture=amd64
    case $word in *:*) architecture=${word#*:} ;; esac
    printf "$(printf %s "$3" | sed "s/.{db:Status-Status}/installed/; s/.{Architecture}/$architecture/")"
done
''',
}


class Tree:
    """A folder with ./dev, the stand-ins and the log of their calls."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        self.top = self.folder.name
        os.mkdir(f'{self.top}/bin')
        shutil.copy(f'{ROOT}/dev', f'{self.top}/dev')
        for name, text in STAND_INS.items():
            with open(f'{self.top}/bin/{name}', 'w', encoding='utf-8') as f:
                f.write('#!/bin/sh\nset -f\n' + text)
            os.chmod(f'{self.top}/bin/{name}', 0o755)
        if os.getuid() == 0:
            for where, _, names in os.walk(self.top):
                for path in [where, *(os.path.join(where, n) for n in names)]:
                    os.chown(path, NOBODY, NOBODY)
        return self

    def __exit__(self, *_):
        self.folder.cleanup()

    def run(self, *args, installed='*', loader='/lib', script=None):
        """Returns the exit code, the output and the calls of ./dev ARGS, or of a script."""
        log = f'{self.top}/log'
        env = {'PATH': f'{self.top}/bin:/usr/bin:/bin', 'LOG': log, 'INSTALLED': installed,
               'LOADER_FOLDER': loader, 'HOME': self.top}
        done = subprocess.run(script or ['./dev', *args], cwd=self.top, env=env, text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              **({'user': NOBODY, 'group': NOBODY} if os.getuid() == 0 else {}))
        calls = []
        if os.path.exists(log):
            with open(log, encoding='utf-8') as f:
                calls = f.read().splitlines()
            os.remove(log)
        return done.returncode, done.stdout, calls

    def mkdir(self, name, mode=0o755):
        path = f'{self.top}/{name}'
        self.run(script=['mkdir', '-p', '-m', oct(mode)[2:], path])
        return path


class Install(unittest.TestCase):
    def install(self, tree, prefix, **more):
        code, out, calls = tree.run('install', f'--prefix={prefix}', **more)
        self.assertEqual(code, 0, out)
        return out, calls

    def test_install_uses_sudo_when_the_prefix_is_not_writable(self):
        with Tree() as tree:
            _, calls = self.install(tree, tree.mkdir('closed', 0o555))
            self.assertIn('root: meson install -C build-install --no-rebuild', calls)

    def test_install_uses_sudo_when_a_folder_of_the_prefix_is_not_writable(self):
        with Tree() as tree:
            tree.mkdir('open/lib')
            tree.mkdir('open/lib/pkgconfig', 0o555)
            _, calls = self.install(tree, f'{tree.top}/open')
            self.assertIn('root: meson install -C build-install --no-rebuild', calls)

    def test_install_needs_no_root_for_a_prefix_of_the_user(self):
        with Tree() as tree:
            for prefix in (tree.mkdir('mine'), f'{tree.top}/to/be/made'):
                out, calls = self.install(tree, prefix)
                self.assertIn('meson install -C build-install --no-rebuild', calls)
                self.assertFalse([c for c in calls if 'sudo' in c])
                self.assertIn(f'export PKG_CONFIG_PATH={prefix}/lib/pkgconfig', out)
                self.assertIn(f'-Wl,-rpath,{prefix}/lib', out)

    def test_install_updates_the_loaders_cache_when_the_loader_searches_there(self):
        with Tree() as tree:
            prefix = tree.mkdir('closed', 0o555)
            out, calls = self.install(tree, prefix, loader=f'{prefix}/lib')
            self.assertEqual(calls[-1], 'root: ldconfig ')
            self.assertNotIn('rpath', out)
            _, calls = self.install(tree, prefix, loader=f'{prefix}/lib64')
            self.assertNotIn('root: ldconfig ', calls)

    def test_install_names_the_remedy_when_there_is_no_sudo(self):
        with Tree() as tree:
            os.remove(f'{tree.top}/bin/sudo')
            # No other program of /usr/bin may replace it.
            for name in ('sh', 'id', 'dirname', 'mktemp', 'rm', 'cat', 'echo', 'basename', 'mkdir', 'sed', 'grep', 'awk', 'readlink'):
                os.symlink(shutil.which(name), f'{tree.top}/bin/{name}')
            prefix = tree.mkdir('closed', 0o555)
            code, out, _ = tree.run(script=['/bin/sh', '-c',
                                            f'PATH={tree.top}/bin; ./dev install --prefix={prefix}'])
            self.assertEqual(code, 1)
            self.assertIn('choose another folder by --prefix=DIR', out)


    def test_install_refuses_the_folder_of_the_source(self):
        with Tree() as tree:
            for prefix in (tree.top, f'{tree.top}/'):
                code, out, calls = tree.run('install', f'--prefix={prefix}')
                self.assertEqual((code, calls), (1, []), out)
                self.assertIn('the prefix is the folder of the source', out)


class Packages(unittest.TestCase):
    def packages(self, command, installed):
        """Returns the packages that a command requests from apt-get."""
        with Tree() as tree:
            _, _, calls = tree.run(*command, installed=installed)
        asked = [c for c in calls if 'apt-get' in c and ' install ' in c and 'sudo' not in c]
        return {word for call in asked for word in call.split('--no-install-recommends')[1].split()}

    def test_packages_of_another_architecture_do_not_count(self):
        install = ['install', '--prefix=mine']
        self.assertNotIn('zlib1g-dev', self.packages(install, 'zlib1g-dev:amd64 zlib1g-dev:arm64'))
        self.assertNotIn('python3', self.packages(install, 'python3:all'))
        self.assertIn('zlib1g-dev', self.packages(install, 'zlib1g-dev:arm64'))
        self.assertEqual(self.packages(install, '*'), set())

    def test_users_need_no_packages_of_tests(self):
        for command in (['install', '--prefix=mine'], ['demo']):
            asked = self.packages(command, '')
            self.assertIn('libjansson-dev', asked)
            self.assertIn('libc6-dev', asked)  # the package gcc does not install the C headers
            self.assertFalse(asked & {'g++', 'libcmocka-dev', 'libopenblas-dev', 'qemu-user'})
        self.assertLess({'g++', 'libcmocka-dev', 'libopenblas-dev'}, self.packages(['test'], ''))


class Bench(unittest.TestCase):
    built = None  # the targets of each call of ninja

    def rows(self, *args):
        """Returns the benchmarks that ./dev bench ARGS runs, in a tree with two of them."""
        with Tree() as tree:
            tree.run(script=['sh', '-c', 'mkdir bench; echo "int main(void)" | tee bench/fit.c >bench/ps_dense.c; '
                                         'echo "int help(void)" >bench/allocations.c'])
            code, out, calls = tree.run('bench', *args)
        self.built = [c.split()[3:] for c in calls if c.startswith('ninja ')]
        return code, out, [c for c in calls if c.split()[0] in ('fit', 'ps_dense', 'allocations')]

    def test_bench_runs_every_row_when_none_is_named(self):
        self.assertEqual(self.rows('--quick'), (0, 'building build-release/\n', ['fit --quick', 'ps_dense --quick']))

    def test_bench_takes_the_printed_name_and_the_name_of_the_file(self):
        for name in ('ps-dense', 'ps_dense'):
            self.assertEqual(self.rows(name), (0, 'building build-release/\n', ['ps_dense ']))

    def test_bench_builds_the_programs_that_it_runs(self):
        self.rows('ps-dense')
        self.assertEqual(self.built, [['bench/ps_dense']])
        self.rows()
        self.assertEqual(self.built, [['bench/fit', 'bench/ps_dense']])

    def test_bench_names_a_row_that_is_not_there_before_it_builds_or_runs_any(self):
        for names in (['fast'], ['fit', 'fast'], ['fit', 'allocations']):
            code, out, ran = self.rows(*names)
            self.assertEqual((code, out), (1, f'dev: bench: no bench/{names[-1]}.c; there are fit ps_dense\n'))
            self.assertEqual((self.built, ran), ([], []))

    def test_rows_print_the_name_of_their_file(self):
        for path in glob.glob(f'{ROOT}/bench/*.c'):
            with open(path, encoding='utf-8') as f:
                name = re.search(r'= bench_open\("([^"]+)"', f.read())
            if name:
                self.assertEqual(name.group(1).replace('-', '_'), os.path.basename(path)[:-2])


if __name__ == '__main__':
    sys.exit(unittest.main(verbosity=0))
