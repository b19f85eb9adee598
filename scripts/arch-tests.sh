# shellcheck shell=bash
# Tests of packages for the machines of scripts/check-arch.sh, which have no Go, no compiler and no source. They are
# the tests that stop processes, tests of probes (other kernels set them in other ways), tests of wait events
# (Debian's kernels have trampolines for programs), and tests of stacks at each instruction. To be sourced after
# stacks.sh.

# need_libc MACHINE finds the C library that programs for another machine are linked with, or installs it.
need_libc() {
	local package
	printf '#include <stdio.h>\n' | "${TRIPLE[$1]}-gcc" -E - >/dev/null 2>&1 && return 0
	case $1 in
	aarch64) package=libc6-dev-arm64-cross ;;
	ppc64le) package=libc6-dev-ppc64el-cross ;;
	s390x) package=libc6-dev-s390x-cross ;;
	riscv64) package=libc6-dev-riscv64-cross ;;
	*) package=libc6-dev ;;
	esac
	{ is_root && have apt-get; } || die "there is no C library for $1" "package $package"
	apt_install "no C library for $1 here" "$package"
}

# test_program MACHINE FILE SOURCE FLAG...: build one of the tests' C programs.
test_program() {
	quietly "${TRIPLE[$1]}-gcc" -g -O1 -pthread -static -o "$2" "$3" "${@:4}"
}

# arch_tests MACHINE OVERLAY puts tests and programs into a machine. There, a program named gcc returns the programs
# that were compiled here, by the names of their sources. If a flag asks for frame pointers or a back chain, it
# returns the variant whose functions keep a chain.
arch_tests() {
	local machine=$1 dir=$2/check goarch=${GOARCH_OF[$1]} package program chain=-fno-omit-frame-pointer
	need_libc "$machine"
	for package in ptrace ptrace/measure/clusterbpf ptrace/measure/waits worker/capture worker/measure/waitevent; do
		arch_test_binary "$goarch" "$dir" "$package"
	done
	mkdir "$dir/doc"
	cp "$TOP/doc/safety.md" "$dir/doc/" # which a test reads
	mkdir "$dir/compiled"
	for program in target notice uring; do
		test_program "$machine" "$dir/compiled/$program" "$TOP/ptrace/testdata/$program.c"
	done
	if [[ $machine == x86_64 ]]; then
		test_program "$machine" "$dir/compiled/coroutines" "$TOP/ptrace/testdata/coroutines.c"
	fi
	[[ $machine != s390x ]] || chain=-mbackchain
	program=$TOP/worker/capture/testdata/probed.c
	test_program "$machine" "$dir/compiled/probed" "$program" -O2 -fno-ipa-icf -fomit-frame-pointer
	test_program "$machine" "$dir/compiled/probed$chain" "$program" -O2 -fno-ipa-icf "$chain"
	arch_compiler "$dir"
}

# arch_compiler DIR makes the program named gcc.
arch_compiler() {
	cat >"$1/gcc" <<'GCC'
#!/bin/sh
while [ $# -gt 0 ]; do
	case $1 in
	-o) file=$2; shift ;;
	-fno-omit-frame-pointer | -mbackchain | -mbranch-protection=*) chain=$1 ;;
	*.c) source=$(basename "$1" .c) ;;
	esac
	shift
done
exec cp "/check/compiled/$source$chain" "$file"
GCC
	chmod 755 "$1/gcc"
}

# arch_go_builder MACHINE DIR makes a program named go, which returns the Go program whose calls are traced: compiled here,
# with and without symbols.
arch_go_builder() {
	local goarch=${GOARCH_OF[$1]}
	mkdir -p "$2/worker/functrace/testdata/calls"
	cp "$TOP/worker/measure/functrace/testdata/calls/main.go" "$2/worker/functrace/testdata/calls/"
	(cd "$TOP/worker/measure/functrace" && export CGO_ENABLED=0 GOARCH=$goarch &&
		"$GO" build -o "$2/compiled/calls" ./testdata/calls &&
		"$GO" build -ldflags='-s -w' -o "$2/compiled/calls-stripped" ./testdata/calls)
	cat >"$2/go" <<'GO'
#!/bin/sh
while [ $# -gt 0 ]; do
	case $1 in
	-o) file=$2; shift ;;
	-ldflags=*) variant=-stripped ;;
	esac
	shift
done
exec cp "/check/compiled/calls$variant" "$file"
GO
	chmod 755 "$2/go"
}

# arch_test_binary GOARCH DIR PACKAGE builds the tests of a package.
arch_test_binary() {
	mkdir -p "$2/$3/testdata"
	(cd "$TOP" && CGO_ENABLED=0 GOARCH=$1 "$GO" test -c -trimpath -o "$2/$3/tests" "./$3")
}

# arch_calls MACHINE OVERLAY puts the tests of traced functions into a machine, with the program whose calls they trace.
arch_calls() {
	local machine=$1 dir=$2/check source=$TOP/worker/measure/functrace/testdata/chain.c
	need_libc "$machine"
	arch_test_binary "${GOARCH_OF[$machine]}" "$dir" ptrace/measure/probe
	arch_test_binary "${GOARCH_OF[$machine]}" "$dir" worker/measure/functrace
	mkdir -p "$dir/compiled"
	test_program "$machine" "$dir/compiled/chain" "$source" -O2 -fomit-frame-pointer
	test_program "$machine" "$dir/compiled/chain-fno-omit-frame-pointer" "$source" -O2 -fno-omit-frame-pointer \
		-fno-asynchronous-unwind-tables -fno-unwind-tables
	[[ $machine != aarch64 ]] ||
		test_program "$machine" "$dir/compiled/chain-mbranch-protection=standard" "$source" -O2 -fomit-frame-pointer \
			-mbranch-protection=standard
	arch_compiler "$dir"
	arch_go_builder "$machine" "$dir"
}

# arch_calls_script BINDIRS prints the commands that run them there. The test that needs gdb is left out.
arch_calls_script() {
	cat <<SCRIPT
busybox --install -s /usr/bin 2>/dev/null
export PGSB_ARCH_PROGRAM=/check/pg_stat_backtrace PGSB_TEST_BINDIRS=$1 PGSB_TRACE_CONNECTIONS=10
status=0
(cd /check/ptrace/measure/probe && ./tests -test.v -test.timeout 10m) || status=1
(cd /check/worker/measure/functrace && ./tests -test.v -test.timeout 10m -test.run '^Test(KnownChains|Go|GoArguments)$') || status=1
(cd /check/worker/measure/functrace && ./tests -test.v -test.timeout 40m -test.run '^TestCallsOfServer$' \
	-test.skip '/.*/(overhead|ended_process)$') || status=1
exit \$status
SCRIPT
}

# arch_instructions MACHINE OVERLAY puts the test that counts instructions into a machine.
arch_instructions() {
	local dir=$2/check
	need_libc "$1"
	arch_test_binary "${GOARCH_OF[$1]}" "$dir" worker/measure/waitevent
	mkdir -p "$dir/compiled"
	test_program "$1" "$dir/compiled/instructions" "$TOP/worker/measure/waitevent/testdata/instructions.c"
	arch_compiler "$dir"
}

# arch_instructions_script BINDIR prints the commands that run it there.
arch_instructions_script() {
	cat <<SCRIPT
busybox --install -s /usr/bin 2>/dev/null
export PGSB_TEST_BINDIRS=$1 PGSB_ARCH_INSTRUCTIONS=1
cd /check/worker/measure/waitevent && exec ./tests -test.v -test.timeout 0 -test.run '^TestInstructions$'
SCRIPT
}

# arch_tests_script prints the commands that run them there. TestStopAndCopyIsNosplit reads the source, and is the same
# everywhere. Stacks of a server without call frame information take seconds each there.
arch_tests_script() {
	cat <<'SCRIPT'
(cd /check/ptrace && PGSB_TEST_CORES=1 ./tests -test.v -test.timeout 25m -test.skip '^TestStopAndCopyIsNosplit$') || status=1
(cd /check/ptrace/measure/clusterbpf && ./tests -test.v -test.timeout 10m) || status=1
(cd /check/ptrace/measure/waits && ./tests -test.v -test.timeout 10m) || status=1
(cd /check/worker/measure/waitevent && ./tests -test.v -test.timeout 40m) || status=1
(cd /check/worker/capture && ./tests -test.v -test.timeout 25m -test.run '^TestReturnProbes$') || status=1
(cd /check/worker/capture && ./tests -test.v -test.timeout 40m -test.run '^TestPlans$/.*/^(statements|trigger|nested|deep)$') || status=1
(cd /check/worker/capture && PGSB_STEPS=150 ./tests -test.v -test.timeout 40m -test.run '^TestEveryInstructionOfBackends$') || status=1
(cd /check/worker/capture && PGSB_STEPS=1500 ./tests -test.v -test.timeout 40m -test.run '^TestEveryInstruction(Around)?$') || status=1
SCRIPT
}
