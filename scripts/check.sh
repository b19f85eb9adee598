#!/usr/bin/env bash
# check.sh [--beside STAGE,...]... STAGE...: run tests. Missing programs are fetched first. Ends with the number of tests
# of each stage. The exit status is 0 if all passed. The stages of --beside compute, and run beside the others, which
# wait for servers most of the time. Stages:
#
#   vet
#   builds         for every architecture, and vet for a second one
#   format         gofmt, go mod tidy, shellcheck, prose, generated files
#   lint           golangci-lint
#   test           no server
#   test-pg        one server
#   load           starts four busy loops for each processor, beside the stages that follow
#   sql            the Go tests of SQL, on the oldest and the newest version
#   pure           the Go tests below unwind and internal
#   tools          the Go tests of the programs in tools/
#   worker         the other Go tests, on the newest and the native server
#   go             sql, pure, worker
#   race           sql and worker with the race detector
#   versions       the Go tests of SQL to their full extent, on every version
#   soak           hours
#   faults         minutes; prints figures
#   nonstop        minutes; prints figures
#   regress        pg_regress
#   tap
#   contract       the Go tests of the SQL contract, on one server
#   support-table  writes doc/internals/benchmarks.md's table of supported versions from the end-to-end tests
#   names          every name and line compared with other tools, at length

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/packages.sh
source "$TOP/scripts/packages.sh"
# shellcheck source=scripts/experimental.sh
source "$TOP/scripts/experimental.sh"
# shellcheck source=scripts/postgresql.sh
source "$TOP/scripts/postgresql.sh"
# shellcheck source=scripts/tools.sh
source "$TOP/scripts/tools.sh"

RESULTS=()
FAILED=0
UNSTEADY=0 # tests that passed only when they ran again
PACKAGES=() # for go_tests; each stage says which
declare -A BESIDE # process groups of stages that run beside others

# result STAGE STATUS TEXT: remember the outcome of a stage.
result() {
	local word=passed
	if [[ $2 -ne 0 ]]; then
		word=FAILED
		FAILED=1
	fi
	RESULTS+=("$(printf '%-8s %-7s %s' "$1" "$word" "$3")")
}

stage_vet() {
	local status=0 tool=(-vettool "$TOP/scripts/vet.sh")
	[[ -z ${PGSB_TEST_FULL:-} ]] || tool=()
	cd "$TOP"
	say "go vet ${tool[*]}"
	"$GO" vet "${tool[@]}" ./... || status=1
	"$GO" vet -C tools "${tool[@]}" ./... || status=1
	result vet $status ""
}

# stage_builds links the program for each architecture. The linker checks whether the code that runs while a process is
# stopped has enough stack, which differs between architectures. go vet also checks the tests for s390x, which has the
# other byte order.
stage_builds() {
	local status=0 arch archs=(amd64 arm64 ppc64le riscv64 s390x)
	cd "$TOP"
	GOARCH=s390x "$GO" vet ./... || status=1
	for arch in "${archs[@]}"; do
		say "go build for $arch"
		GOARCH=$arch CGO_ENABLED=0 "$GO" build -o "$WORK/built" . || status=1
	done
	rm -f "$WORK/built"
	result builds $status "${archs[*]}"
}

stage_lint() {
	local status=0
	need_golangci
	cd "$TOP"
	say "golangci-lint $GOLANGCI_VERSION"
	"$GOLANGCI" run ./... || status=1
	(cd tools && "$GOLANGCI" run -c ../.golangci.yml ./...) || status=1
	result lint $status ""
}

stage_format() {
	local status=0 unformatted scripts log=$WORK/format.log
	need_shellcheck
	cd "$TOP"
	say "gofmt, go mod tidy, shellcheck, prose, generated files"
	mapfile -t scripts < <(ls scripts/*.sh packaging/*/*.sh .ci/run)
	{
		unformatted=$(gofmt -l .)
		[[ -z $unformatted ]] || { printf 'not formatted by gofmt: %s\n' "$unformatted"; status=1; }
		"$GO" mod tidy -diff || status=1
		(cd tools && "$GO" mod tidy -diff) || status=1
		printf '%s\0' "${scripts[@]}" | xargs -0 -n 6 -P "$(nproc)" "$SHELLCHECK" -x || status=1
		scripts/tool.sh prosecheck || status=1
		if have clang-19; then
			scripts/generate.sh --check || status=1
		else
			note "no clang-19 here: the compiled programs for the kernel are not compared with their source"
		fi
	} > >(tee "$log") 2>&1
	wait $! # for tee
	[[ $status -eq 0 ]] || head -n 40 "$log" >>"$WORK/failures" # to be read at the end once more
	result format $status ""
}

# The program is built without cgo. With it, the tests would compile all packages a second time.
export CGO_ENABLED=0

# go_tests STAGE OPTION...: run go test, show a line for each package, failures and skipped tests, and count. Up to
# four failed tests are kept for run_again. One package for each processor runs at a time, and $additional more.
go_tests() {
	local stage=$1 package name status=0 later='' log=$WORK/$1.log again=$WORK/$1.again
	shift
	cd "$TOP"
	say "go test $* ${PACKAGES[*]}"
	export PGSB_TEST_TEMPLATES=$WORK/templates
	# Not without servers: the variable is another one in each run, so go test would run unchanged packages again.
	[[ -z ${PG_BIN:-} ]] || export PGSB_TEST_PROGRAMS=$WORK/programs PGSB_TEST_BINDIRS=${PGSB_TEST_BINDIRS:-${VERSION_BINS:-}$PG_BIN} PGSB_TEST_USER=$SERVER_USER
	"$GO" build -C "$TOP/tools" -o "$WORK/testreport-$stage" ./testreport
	export PGSB_TEST_PROCESSOR_TIMES=$WORK/$stage.processor
	"$GO" test -vet=off -p "$(($(nproc) + ${additional:-0}))" -timeout 30m -exec "'$TOP/scripts/measured.sh'" -json "$@" "${PACKAGES[@]}" 2>&1 | tee "$WORK/$stage.json" |
		"$WORK/testreport-$stage" -again "$again" -times "$WORK/$stage.times" "$WORK/failures" | tee "$log" || status=1
	if [[ $status -ne 0 && -s $again && $(wc -l <"$again") -le 4 ]]; then
		status=0 later='; the failed ones run again, alone'
		while read -r package name; do
			printf '%s|%s|%s|%s|%s\n' "$stage" "$package" "$name" "${PGSB_TEST_BINDIRS:-}" "$*" >>"$WORK/again"
		done <"$again"
	fi
	result "$stage" $status "$(tail -n 1 "$log")$later"
}

# run_again runs failed tests alone. The results name each of them: a test that passes now depends on other tests or on a
# free processor, and must be mended or removed. With PGSB_TEST_STRICT=1 it fails the run, otherwise it counts as unsteady.
run_again() {
	local stage package name servers options status cgo
	[[ -e $WORK/again ]] || return 0
	cd "$TOP"
	while IFS='|' read -r stage package name servers options; do
		status=0
		say "Alone: go test $options -run ^$name\$ $package"
		cgo=$([[ $options == *-race* ]] && echo 1 || echo 0)
		# shellcheck disable=SC2086 # options are words
		CGO_ENABLED=$cgo PGSB_TEST_BINDIRS=$servers "$GO" test -vet=off -count=1 -timeout 10m $options -run "^$name\$" "$package" </dev/null || status=1
		if [[ $status -eq 0 ]]; then
			UNSTEADY=$((UNSTEADY + 1))
			[[ ${PGSB_TEST_STRICT:-0} == 0 ]] || FAILED=1
			RESULTS+=("$(printf '%-8s %-7s %s' again unsteady "$package $name failed beside other tests ($stage), and passed alone: mend or remove it")")
		else
			result again 1 "$package $name failed twice ($stage, and alone)"
		fi
	done <"$WORK/again"
}

# stage_load keeps all processors busy until the script ends. Each loop ends on its own if the script is killed.
stage_load() {
	local number loops=$((4 * $(nproc)))
	for ((number = 0; number < loops; number++)); do
		timeout 4h bash -c 'while :; do :; done' </dev/null >/dev/null 2>&1 &
		stop_at_end $!
	done
	result load 0 "$loops busy loops beside the other stages"
}

# built_debug_postgresql lets the tests use the PostgreSQL with debugging information, if it has been built. The build
# takes minutes, so only stages that require it build it.
built_debug_postgresql() {
	if [[ -e $CACHE/debug-postgresql/.complete ]]; then
		export PGSB_DEBUG_BINDIR=$CACHE/debug-postgresql/install/bin
	else
		note "no PostgreSQL with debugging information: make check-names builds one, and compares its lines"
	fi
}

# The packages with tests of SQL.
CONTRACT=(./internal/e2e ./worker/authz ./worker/serve/queue ./worker/serve/spool)

stage_go() {
	stage_sql
	stage_pure
	stage_worker
}

stage_sql() {
	need_server
	make_version_trees
	need_race_detector || true # testdata/preload.c needs the compiler
	PACKAGES=("${CONTRACT[@]}")
	PGSB_TEST_BINDIRS=$(ends) go_tests sql "$@"
}

# ends prints the directories of the oldest and the newest version. The caller may choose other directories.
ends() {
	local oldest=${VERSION_BINS%%:*} newest=${VERSION_BINS%:}
	echo "${GIVEN_BINDIRS:-${oldest:+$oldest:${newest##*:}:}$([[ -n $oldest ]] || echo "$PG_BIN")}"
}

# stage_pure runs the packages that compute most of the time. Those below unwind start no goroutines, except dwarf. The
# longest ones come first, because they end last.
stage_pure() {
	# shellcheck disable=SC2016 # $0 is awk's
	local order='{ print (/stackoracle$/ ? 0 : /(places|serving)$/ ? 1 : 2), $0 }'
	two_versions
	built_debug_postgresql
	mapfile -t PACKAGES < <(cd "$TOP" && "$GO" list ./... | grep -E '/unwind(/|$)|/internal/' |
		grep -vE '/internal/e2e$|/unwind/dwarf' | awk "$order" | sort | cut -d ' ' -f 2)
	go_tests pure
}

# stage_tools runs the tests of the programs in tools/.
stage_tools() {
	local status=0
	say "go test in tools"
	"$GO" test -C "$TOP/tools" -vet=off ./... || status=1
	result tools $status ""
}

# stage_worker runs the packages about live processes and servers. The longest ones come first, because they end last.
stage_worker() {
	# shellcheck disable=SC2016 # $0 is awk's
	local order='{ print (/worker\/(capture|measure\/(functrace|waitevent|clusterprofile)|cli)$/ ? 0 : 1), $0 }'
	two_versions
	built_debug_postgresql
	mapfile -t PACKAGES < <(cd "$TOP" && "$GO" list ./ptrace/... ./worker/... ./unwind/dwarf/... . |
		grep -vE '/worker/(authz|serve/queue|serve/spool)$' | awk "$order" | sort | cut -d ' ' -f 2)
	# These tests often wait for servers and timers, and the stages beside them end earlier.
	additional=1 go_tests worker "$@"
}

stage_race() {
	need_race_detector || die "no C compiler here: the race detector needs one"
	local -x CGO_ENABLED=1
	stage_sql -race
	stage_worker -race
}

# two_versions lets the tests use the newest version and the native one, unless the caller has chosen.
two_versions() {
	local newest
	need_server
	make_version_trees
	newest=${VERSION_BINS%:}
	export PGSB_TEST_BINDIRS=${GIVEN_BINDIRS:-${newest:+${newest##*:}:}$PG_BIN}
}

# stage_versions runs the packages about SQL, every test on every version, and checks doc/internals/benchmarks.md's table of
# supported versions.
stage_versions() {
	need_server
	make_version_trees
	need_race_detector || true # testdata/preload.c needs the compiler
	PACKAGES=("${CONTRACT[@]}")
	PGSB_TEST_FULL=1 go_tests versions
	[[ -z ${VERSION_BINS:-} ]] || support_table versions -check
}

# stage_support-table runs the end-to-end tests on every version and writes doc/internals/benchmarks.md's table of supported versions.
stage_support-table() {
	PACKAGES=(./internal/e2e)
	need_server
	make_version_trees
	need_race_detector || true # testdata/preload.c needs the compiler
	PGSB_TEST_FULL=1 go_tests support
	support_table support
}

# support_table STAGE [-check] makes doc/internals/benchmarks.md's table of supported versions from the results of a stage, or
# checks it.
support_table() {
	local status=0 results=$WORK/$1.json
	shift
	(cd "$TOP" && scripts/tool.sh supporttable "$@" doc/internals/benchmarks.md) <"$results" || status=1
	result table $status "doc/internals/benchmarks.md, supported versions"
}

# stage_contract runs the tests of the SQL contract on one server.
stage_contract() {
	need_server
	PACKAGES=(./internal/e2e ./worker/serve/spool ./worker/authz)
	need_race_detector || true # testdata/preload.c needs the compiler
	go_tests contract
}

# stage_test runs the quick tests that need no PostgreSQL server.
stage_test() {
	PACKAGES=(./...)
	build_program
	PGSB_TEST_SERVERS=none go_tests test -short
}

# stage_test-pg runs the tests with a server on one version: the native one, or PG_CONFIG's, or PG_NPM_VERSION.
stage_test-pg() {
	need_server
	mapfile -t PACKAGES < <(cd "$TOP" &&
		"$GO" list -f '{{.ImportPath}} {{.TestImports}} {{.XTestImports}}' ./... | awk '/internal\/pgtest/ {print $1}')
	PGSB_TEST_BINDIRS=$PG_BIN go_tests test-pg -short
}

# stage_soak runs the tests whose extent depends on the available time: 10,000 captures of busy servers, and every
# frame rule of LLVM's library too. It also stops each busy program a hundred times, steps through a million
# instructions of each program and statement, and tests a thousand moments of a nested load on every version.
stage_soak() {
	need_server
	make_version_trees
	PACKAGES=(./...)
	export PGSB_TEST_BINDIRS=${PGSB_TEST_BINDIRS:-$VERSION_BINS$PG_BIN}
	export PGSB_SNAPSHOTS=${PGSB_SNAPSHOTS:-10000} PGSB_ORACLE_SLOW=1 STACKORACLE_RANDOM=${STACKORACLE_RANDOM:-100}
	export PGSB_STEPS=${PGSB_STEPS:-1000000}
	go_tests soak -count=1 -timeout 3h -v -run 'RandomSnapshots|Oracle|TestBusy|TestPostgres|TestGenerated|EveryInstruction'
	PACKAGES=(./worker/capture)
	export PGSB_TEST_MOMENTS=${PGSB_TEST_MOMENTS:-1000}
	go_tests moments -count=1 -timeout 1h -v -run 'TestMoments|TestPositions'
}

# large_debug_file prints the names of a debug file of 150 MB, and of its compressed form of 52 MB. It is the largest
# in a Debian package of moderate size.
large_debug_file() {
	local compressed
	deb_unpack large-debug ceph-mgr-dbg >&2
	compressed=$(find "$CACHE/debs/large-debug" -name '*.debug' -size +20M | head -n 1)
	objcopy --decompress-debug-sections "$compressed" "$WORK/large.debug"
	echo "$WORK/large.debug:$compressed"
}

# supplemented_file prints the name of a library with debugging information of which dwz has moved a part to a
# supplementary file. It uses a library that Debian ships in this form.
supplemented_file() {
	local root=$CACHE/debs/supplement library debug link=$WORK/altlink
	deb_unpack supplement libkrb5-3 libkrb5-dbg >&2
	library=$(find "$root" -name spake.so)
	debug=$(find "$root" -path "*/$(readelf -n "$library" | sed -n 's/.*Build ID: ..//p').debug")
	eu-unstrip -o "$WORK/spake.so" "$library" "$debug"
	# The link is an absolute path, to where the package would be installed.
	objcopy --dump-section ".gnu_debugaltlink=$link" "$debug" /dev/null
	printf '%s%s\0' "$root" "$(tr '\0' '\n' <"$link" | head -n 1)" >"$link.new"
	tail -c 20 "$link" >>"$link.new"
	objcopy --update-section ".gnu_debugaltlink=$link.new" "$WORK/spake.so"
	echo "$WORK/spake.so"
}

# aarch64_files prints the servers and PL/pgSQL modules of npm's builds for aarch64, colon-separated. They run nowhere
# here: the tests compare the names that their code gives with their symbols.
aarch64_files() {
	local version dest
	while read -r version; do
		dest=$CACHE/npm/linux-arm64-$version
		[[ -e $dest/.complete ]] || locked npm fetch_npm_locked "$version" "$dest" linux-arm64 >&2
		printf '%s:' "$dest/bin/postgres" "$dest/lib/postgresql/plpgsql.so"
	done < <(awk '!/^#/ && NF {print $2}' "$TOP/scripts/npm-postgresql-linux-arm64.sha512")
}

# stage_names compares lines and inlined calls at some 300,000 addresses, and the names of stripped servers of every
# version, also of aarch64. The addresses include a PostgreSQL with debugging information, and a Debian library with a supplementary
# file.
stage_names() {
	need_server
	make_version_trees
	PGSB_DEBUG_BINDIR=$("$TOP/scripts/build-postgresql.sh")
	PGSB_FIRST_FILES=$(large_debug_file):$WORK/postgres-zlib
	objcopy --compress-debug-sections=zlib "$PGSB_DEBUG_BINDIR/postgres" "$WORK/postgres-zlib"
	PGSB_ORACLE_FILES=$(supplemented_file)
	PGSB_NAMES_TRUTH=${PGSB_NAMES_TRUTH:+$PGSB_NAMES_TRUTH:}$(aarch64_files)
	PGSB_NAMES_TRUTH=${PGSB_NAMES_TRUTH%:}
	export PGSB_DEBUG_BINDIR PGSB_FIRST_FILES PGSB_ORACLE_FILES PGSB_NAMES_TRUTH
	export PGSB_ORACLE_ADDRESSES=${PGSB_ORACLE_ADDRESSES:-50000} PGSB_TEST_NAMES=${PGSB_TEST_NAMES:-100}
	PACKAGES=(./unwind/dwarf ./unwind/symbol ./unwind/selfnames ./worker/capture)
	export PGSB_TEST_FULL=1 # names of every version
	local tests='TestOracle|TestGo$|TestFirstUse|TestStrippedNamesAgree|TestNoWrongName'
	tests+='|TestDerivedNames|TestMutatedTable|TestLengths'
	go_tests names -count=1 -timeout 1h -v -run "$tests"
}

# stage_faults causes faults as often as the documentation says: signals, stops, kills, reused ids, a million
# captures, a swapped stack, a core file being written, a locked address space.
stage_faults() {
	have bindfs || ! is_root || ! have apt-get || apt_install "a file system that can stop answering" bindfs
	export PGSB_FAULTS=full PGSB_TEST_SWAP=1 PGSB_TEST_CORES=1 PGSB_TEST_LOCKED=1
	PACKAGES=(./ptrace)
	go_tests faults -count=1 -timeout 1h -v -run 'Storm|Fault|Notice|Swapped|Dumping|Locked'
}

# stage_nonstop compares captures without a stop with captures by a stop, on every server.
stage_nonstop() {
	need_server
	make_version_trees
	PACKAGES=(./worker/capture)
	export PGSB_TEST_BINDIRS=$VERSION_BINS$PG_BIN
	go_tests nonstop -count=1 -timeout 1h -v -run 'NonStop'
}

# stage_regress runs pg_regress against a throw-away server with a worker.
stage_regress() {
	local status=0 log=$WORK/regress.log names=() file
	need_server
	need_pg_regress
	for file in "$TOP"/regress/sql/*.sql; do names+=("$(basename "$file" .sql)"); done
	copy_tests
	start_server regress
	start_worker
	say "pg_regress on PostgreSQL $PG_VERSION: ${names[*]}"
	(cd "$WORK" && as_server "$PG_REGRESS" --inputdir="$WORK/src/regress" --outputdir="$WORK/src/regress" \
		--bindir="$PG_BIN" --host="$PGHOST" --port="$PGPORT" --user="$PGUSER" --dbname=contrib_regression \
		"${names[@]}") >"$log" 2>&1 || status=1
	grep -E '^(test |ok |not ok )' "$log" || cat "$log"
	[[ $status -eq 0 ]] || cat "$WORK/src/regress/regression.diffs" "$WORK/worker.log" || true
	result regress $status "$(grep -cE '^(test .*\.\.\. ok|ok )' "$log") of ${#names[@]} files passed"
}

# prepare_tap gets what the TAP tests need, and must run before other stages.
prepare_tap() {
	need_server
	need_pg_regress
	need_perl_modules
	copy_tests
}

# stage_tap runs t/*.pl with PostgreSQL's own test modules, one for each processor at a time: they wait most of the time.
stage_tap() {
	local status=0 log=$WORK/tap.log tests
	prepare_tap
	read -ra tests <<<"${PROVE_TESTS:-t/*.pl}"
	say "prove ${tests[*]} on PostgreSQL $PG_VERSION, as user $SERVER_USER"
	# shellcheck disable=SC2068 # a pattern in PROVE_TESTS is to be expanded
	(cd "$WORK/src" && as_server env -u PGDATA -u PGHOST -u PGPORT -u PGUSER -u PGDATABASE \
		PATH="$PG_BIN:$PATH" HOME="$WORK" TESTDIR="$WORK/tap" TESTLOGDIR="$WORK/tap/tmp_check/log" \
		TESTDATADIR="$WORK/tap/tmp_check" PERL5LIB="$PERL_PATH" PG_REGRESS="$PG_REGRESS" \
		PG_TEST_TIMEOUT_DEFAULT=600 PGSB_PROGRAM="$PROGRAM" "${PROVE[@]}" --jobs "$(nproc)" -I t/lib ${tests[@]}) 2>&1 |
		tee "$log" || status=1
	if [[ $status -ne 0 ]]; then save_tap_logs; fi
	result tap $status "$(grep '^Files=' "$log" | sed 's/,  *[0-9.]* wallclock.*//')"
}

# save_tap_logs keeps the logs of failed tests: in a folder that CI may collect, tmp_check.
save_tap_logs() {
	rm -rf "$TOP/tmp_check"
	cp -r "$WORK/tap/tmp_check/log" "$TOP/tmp_check" 2>/dev/null || return 0
	note "logs of the servers and tests: $TOP/tmp_check"
}

# need_server builds the program and prepares PostgreSQL, once.
need_server() {
	[[ -z ${PROGRAM:-} ]] || return 0
	say "Building the program, and preparing a private copy of PostgreSQL in $WORK"
	build_program
	prepare_postgresql
}

# copy_tests puts the tests where the server's user can read them.
copy_tests() {
	[[ ! -e $WORK/src ]] || return 0
	mkdir "$WORK/src" "$WORK/tap"
	cp -r "$TOP/t" "$TOP/regress" "$TOP/sql" "$TOP/pg_stat_backtrace.control" "$WORK/src/"
	! is_root || chown -R "$SERVER_USER:" "$WORK/src" "$WORK/tap"
}

# start_beside STAGES: run stages, separated by commas, in the background. finish_beside waits for them, and prints what
# they printed.
start_beside() {
	local stages stage group=$1
	IFS=, read -ra stages <<<"$group"
	say "Beside the following: ${stages[*]}"
	set -m # its own group, to be ended as one
	(
		[[ $group == tap ]] || renice -n 19 -p "$BASHPID" >/dev/null # some tests keep a dozen processes busy
		set +e # each stage remembers its failures
		for stage in "${stages[@]}"; do run_stage "$stage"; done
		processor_time
		echo "$PROCESSOR_TIME" >"$WORK/beside-$group.time"
		printf '%s\n' "${RESULTS[@]}" >"$WORK/beside-$group.results"
		exit "$FAILED"
	) >"$WORK/beside-$group.log" 2>&1 </dev/null &
	BESIDE[$group]=$!
	set +m
	stop_at_end "-${BESIDE[$group]}"
}

finish_beside() {
	local results=() group=$1
	wait "${BESIDE[$group]}" || FAILED=1
	cat "$WORK/beside-$group.log"
	[[ -e $WORK/beside-$group.results ]] || die "the stages beside the others ended early"
	mapfile -t results <"$WORK/beside-$group.results"
	RESULTS=("${results[@]}" "${RESULTS[@]}")
}

# run_stage STAGE: run it, and remember its seconds and its processor time. The latter includes all processes except the
# servers of the stages regress and tap, which outlive the process that starts them.
run_stage() {
	local before begun=$SECONDS
	processor_time
	before=$PROCESSOR_TIME
	"stage_$1"
	processor_time
	printf '%s %s %s\n' "$1" "$((SECONDS - begun))" "$(awk "BEGIN { print $PROCESSOR_TIME - $before }")" >>"$WORK/stages"
}

# processor_time sets PROCESSOR_TIME to the seconds that the ended children of this shell have used, without the stages
# beside others: those are children of the shell, and count their own time.
processor_time() {
	local file=$WORK/times.$BASHPID group beside=0
	for group in "${!BESIDE[@]}"; do
		# An ended stage is part of the shell's time. The exit of the group is later than its file.
		if [[ $BASHPID == "$$" && -e $WORK/beside-$group.time ]] && ! kill -0 "${BESIDE[$group]}" 2>/dev/null; then
			beside="$beside + $(<"$WORK/beside-$group.time")"
		fi
	done
	times >"$file" # not in a subshell, which has no children
	PROCESSOR_TIME=$(awk -v "beside=$(awk "BEGIN { print $beside }")" '
		NR == 2 { split($1 "s" $2, part, /[ms]+/); print 60 * (part[1] + part[3]) + part[2] + part[4] - beside }' "$file")
	rm -f "$file"
}

# slowest prints the 30 tests that took longest, in all stages, and the packages with the most processor time. A test's
# seconds include its waiting for servers and for the other tests. Its processor time is the time of all tests of its
# package, because the tests of a package share a process.
slowest() {
	local times files=("$WORK"/*.times)
	[[ -e ${files[0]} ]] || return 0
	say "The slowest tests: seconds, and the processor time of their package"
	for times in "${files[@]}"; do
		awk -v "top=$TOP" -v "processor=${times%.times}.processor" '
			BEGIN {
				while ((getline line <processor) > 0) {
					space = index(line, " ")
					used["pg_stat_backtrace" substr(line, space + 1 + length(top))] = substr(line, 1, space - 1)
				}
			}
			{ printf "    %7.1f %7s  %s %s\n", $1, $2 in used ? used[$2] : "cached", $2, $3 }' "$times"
	done | sort -rn | awk 'NR <= 30'
	say "The packages with the most processor time, in seconds"
	cat /dev/null "$WORK"/*.processor | sort -rn | awk -v "top=$TOP/" 'NR <= 20 { printf "    %7.1f  %s\n", $1, substr($0, index($0, " ") + 1 + length(top)) }'
}

# processor_times prints the processor time of each stage.
processor_times() {
	[[ -e $WORK/stages ]] || return 0
	say "Seconds of the stages, and their processor time without the servers of regress and tap"
	awk '{ printf "    %-8s %7d %7.1f\n", $1, $2, $3; sum += $3 } END { printf "    %-8s %7s %7.1f\n", "all", "", sum }' "$WORK/stages"
}

# temporary_memory sets TMPDIR to a file system in memory if root runs this and there is plenty of memory: the tests write some 25 GB,
# most of it copies of data directories and linked programs, and a disk can keep a test waiting for seconds. It is not in /dev/shm,
# over which tests mount other file systems.
temporary_memory() {
	local free allowed least=12 # GiB
	[[ -z ${TMPDIR:-} ]] && is_root || return 0
	free=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo)
	allowed=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || true)
	[[ ! $allowed =~ ^[0-9]+$ ]] || ((allowed >> 30 >= least)) || return 0
	((free >= least)) || return 0
	TESTS_MEMORY=$(mktemp -d /tmp/psb.XXXXXX)
	if mount -t tmpfs -o "size=${least}g,mode=1777" pg_stat_backtrace "$TESTS_MEMORY" 2>/dev/null; then
		export TMPDIR=$TESTS_MEMORY
		note "temporary files are in memory: $TESTS_MEMORY"
	else
		rmdir "$TESTS_MEMORY"
		TESTS_MEMORY=
	fi
}

main() {
	local stage beside=()
	while [[ ${1:-} == --beside ]]; do
		beside+=("${2:?}")
		shift 2
	done
	[[ $# -gt 0 ]] || die "no stage given" "see the comment in $0"
	for stage in $(tr , ' ' <<<"${beside[*]}") "$@"; do
		[[ $(type -t "stage_$stage") == function ]] || die "no such stage: $stage"
	done
	temporary_memory
	make_workdir
	GIVEN_BINDIRS=${PGSB_TEST_BINDIRS:-} # stages choose others
	if [[ ${#beside[@]} -gt 0 ]]; then
		need_server
		make_version_trees
	fi
	for stage in "${beside[@]}"; do
		[[ $stage != tap ]] || prepare_tap
		start_beside "$stage"
	done
	for stage; do run_stage "$stage"; done
	for stage in "${beside[@]}"; do finish_beside "$stage"; done
	run_again
	slowest
	processor_times
	say "Results ($SECONDS s)"
	for stage in "${RESULTS[@]}"; do note "$stage"; done
	[[ ! -e $WORK/failures ]] || cat "$WORK/failures"
	[[ $FAILED -eq 0 ]] || die "some tests failed, and $UNSTEADY passed only when they ran again"
	if [[ $UNSTEADY -eq 0 ]]; then
		say "All passed"
	else
		say "All passed, but $UNSTEADY only when they ran again alone: the lines with \"unsteady\" name them"
	fi
}

main "$@"
