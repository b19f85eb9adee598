#!/usr/bin/env bash
# check-arch.sh: boots Debian's kernel of each architecture under qemu's emulation. It runs a real PostgreSQL, the
# worker and internal/archcheck there. They capture all processes through SQL, and test Yama (the kernel's restriction
# of ptrace). It also runs the tests that stop processes (package ptrace). A second machine with aarch64 has a newer
# kernel, which can trace functions. A second one with x86_64 counts the instructions that timing wait events adds.
# After a success, the script writes the machine's rows of doc/internals/benchmarks.md's table of architectures, and those counts.
#
# Some minutes for each architecture; the first time 60 to 150 MB of packages each, kept in the cache. Needs apt-get,
# Go and qemu-system (installed automatically as root).
#   ARCHS="arm64 s390x"  only these (default: all five)
#   ARCH_CPUS=1          processors of a machine (default 2; x86_64: 1)
#   ARCH_SUITE=forky ARCH_VERSION=18
#                        another Debian, with the PostgreSQL that it has

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/packages.sh
source "$TOP/scripts/packages.sh"
# shellcheck source=scripts/arch.sh
source "$TOP/scripts/arch.sh"
# shellcheck source=scripts/stacks.sh
source "$TOP/scripts/stacks.sh"
# shellcheck source=scripts/arch-tests.sh
source "$TOP/scripts/arch-tests.sh"

YAMA_ON=amd64
ALL="amd64 arm64 ppc64le s390x riscv64"
read -ra CHOSEN <<<"${ARCHS:-$ALL}"

declare -A MACHINE
for machine in "${!GOARCH_OF[@]}"; do MACHINE[${GOARCH_OF[$machine]}]=$machine; done

# The machine's script: the tests that stop processes first, then Yama, whose setting cannot be undone. Yama's rules
# do not differ between architectures, so they are tested on one.
run_script() {
	cat <<SCRIPT
status=0
busybox --install -s /usr/bin 2>/dev/null
echo 0 >/proc/sys/kernel/yama/ptrace_scope
export PGSB_ARCH_PROGRAM=/check/pg_stat_backtrace PGSB_ARCH_PROGRAMS=/check/programs PGSB_TEST_BINDIRS=$1
/check/archcheck.test -test.v -test.timeout 25m -test.run '^TestPrograms$' || status=1
/check/archcheck.test -test.v -test.timeout 40m -test.run '^TestStacks$' || status=1
/check/archcheck.test -test.v -test.timeout 40m -test.run '^Test(OldKernel|.*TypeInformation)$' || status=1
SCRIPT
	arch_tests_script
	[[ $2 != "$YAMA_ON" ]] ||
		echo "PGSB_ARCH_YAMA=1 /check/archcheck.test -test.v -test.timeout 30m -test.run '^TestYama\$' || status=1"
	echo "exit \$status"
}

# failed NAME LOG shows what went wrong in a machine, and ends.
failed() {
	tail -n 60 "$2" >&2
	grep -E '^ +[a-z0-9_]+\.go:[0-9]+: |--- FAIL' "$2" | grep -B 8 -e '--- FAIL' >&2 || true
	[[ -z ${ARCH_LOGS:-} ]] || cp "$2" "$ARCH_LOGS/"
	die "$1 failed"
}

# summary LOG says how many tests passed and which were skipped, and keeps the log if that is asked for.
summary() {
	[[ -z ${ARCH_LOGS:-} ]] || cp "$1" "$ARCH_LOGS/"
	grep -B 1 '^ *--- SKIP' "$1" || true
}

# extension OVERLAY puts the extension into the machine's server.
extension() {
	local share=$1/usr/share/postgresql/$PG_MAJOR/extension
	mkdir -p "$share"
	cp "$TOP/pg_stat_backtrace.control" "$TOP"/sql/pg_stat_backtrace--*.sql "$share/"
}

# check_calls ARCH: functions are traced, with the kernel of the next Debian: it takes Linux 6.6.
check_calls() {
	local goarch=$1 overlay=$WORK/overlay-calls log=$WORK/$1-calls.log start=$SECONDS
	arch_facts "$goarch"
	arch_kernel trixie "$KERNEL"
	say "$goarch: functions are traced on the kernel of Debian 13"
	arch_overlay "$goarch" "$overlay"
	extension "$overlay"
	GOARCH=$goarch make -s -C "$TOP" build OUT="$overlay/check/pg_stat_backtrace"
	arch_calls "${MACHINE[$goarch]}" "$overlay"
	arch_calls_script "/usr/lib/postgresql/$PG_MAJOR/bin" >"$overlay/check/run"
	arch_boot "$log" "$ARCH_DIR/root" "$overlay" || failed "$goarch, calls" "$log"
	summary "$log"
	rm -rf "$overlay"
	note "$(grep -c '^ *--- PASS' "$log") tests, $((SECONDS - start)) s"
}

# count_instructions ARCH: the instructions that timing wait events adds, on a processor whose clock counts them.
count_instructions() {
	local goarch=$1 overlay=$WORK/overlay-count log=$WORK/$1-count.log start=$SECONDS
	arch_facts "$goarch"
	say "$goarch: instructions of timing wait events"
	arch_overlay "$goarch" "$overlay"
	arch_instructions "${MACHINE[$goarch]}" "$overlay"
	arch_instructions_script "/usr/lib/postgresql/$PG_MAJOR/bin" >"$overlay/check/run"
	# String instructions would count once for any length.
	QEMU=("${QEMU[0]}" -M q35 -accel tcg -icount "shift=0,sleep=off" -cpu "max,-erms,-fsrm")
	MEMORY=3G BOOT='' ARCH_CPUS=1 arch_boot "$log" "$ARCH_DIR/root" "$overlay" || failed "$goarch, instructions" "$log"
	summary "$log"
	rm -rf "$overlay"
	grep '^@@instructions' "$log" >>"$WORK/more"
	note "$((SECONDS - start)) s"
}

# check ARCH: build, boot, collect.
check() {
	local goarch=$1 overlay=$WORK/overlay-$1 log=$WORK/$1.log bins start=$SECONDS
	local share scenario
	: >"$WORK/more"
	arch_facts "$goarch"
	need_qemu
	need_cross "${MACHINE[$goarch]}"
	arch_fetch
	say "$goarch: Debian's $KERNEL and PostgreSQL $PG_MAJOR under ${QEMU[0]}"
	arch_overlay "$goarch" "$overlay"
	share=usr/share/postgresql/$PG_MAJOR/extension
	bins=/usr/lib/postgresql/$PG_MAJOR/bin
	extension "$overlay"
	GOARCH=$goarch make -s -C "$TOP" build OUT="$overlay/check/pg_stat_backtrace"
	(cd "$TOP" && CGO_ENABLED=0 GOARCH=$goarch "$GO" test -c -trimpath -o "$overlay/check/archcheck.test" ./internal/archcheck)
	if [[ $goarch == arm64 ]]; then
		# Frame pointers and no call frame information.
		fetch_npm_arm64
		mkdir -p "$overlay/opt/npm"
		cp -r "$NPM_SERVER/." "$overlay/opt/npm/"
		cp "$overlay/$share"/* "$overlay/opt/npm/share/postgresql/extension/"
		# Neither, as on Alpine.
		mkdir -p "$overlay/opt/musl" "$overlay/lib"
		cp -r "$(dirname "$("$TOP/scripts/build-postgresql.sh" musl-arm64)")/." "$overlay/opt/musl/"
		mv "$overlay/opt/musl/lib/ld-musl-aarch64.so.1" "$overlay/lib/"
		cp "$overlay/$share"/* "$overlay/opt/musl/share/extension/"
		bins=/opt/npm/bin:/opt/musl/bin:$bins
	fi
	arch_tests "${MACHINE[$goarch]}" "$overlay"
	mkdir "$overlay/check/programs"
	STACK_PAGE=65536
	for scenario in $(stack_scenarios "${MACHINE[$goarch]}"); do
		build_stack "${MACHINE[$goarch]}" "$scenario" "$overlay/check/programs/$scenario" -DSPIN
	done
	run_script "$bins" "$goarch" >"$overlay/check/run"
	arch_boot "$log" "$ARCH_DIR/root" "$overlay" || failed "$goarch" "$log"
	rm -rf "$overlay"
	summary "$log"
	note "$(grep -c '^@@result' "$log") servers, $(grep -c '^--- PASS' "$log") tests, $((SECONDS - start)) s"
	[[ $goarch != arm64 ]] || check_calls "$goarch"
	[[ $goarch != amd64 ]] || count_instructions "$goarch"
	{
		echo "@@qemu $("${QEMU[0]}" --version | sed -n '1s/.*version \([0-9.]*\).*/\1/p')"
		grep '^@@' "$log"
		cat "$WORK/more"
	} >"$WORK/results"
	(cd "$TOP" && scripts/tool.sh archcheck/table doc/internals/benchmarks.md <"$WORK/results")
}

make_workdir
for goarch in "${CHOSEN[@]}"; do
	check "$goarch"
done
say "doc/internals/benchmarks.md has the results"
