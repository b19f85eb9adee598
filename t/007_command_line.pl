# The program on a real server, without SQL: capture and doctor.

use strict;
use warnings;

use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use Worker qw($FRAME backend_pid proc_status wait_until);

my $program = $ENV{PGSB_PROGRAM} or die 'PGSB_PROGRAM does not name the program to test';
my $node    = PostgreSQL::Test::Cluster->new('node');
$node->init;
$node->start;
my $session = $node->background_psql('postgres');
my $pid     = backend_pid($session);
my $data    = $node->data_dir;
my $where   = $node->connstr('postgres') . ' user=' . Worker::superuser();

# program runs it. It returns its exit status, its output and its error output.
sub program
{
	my ($out, $err) = ('', '');
	IPC::Run::run([ $program, @_ ], '<', \undef, '>', \$out, '2>', \$err);
	return ($? >> 8, $out, $err);
}

# Capture: a backend, every process of the server, each format.
my ($status, $out, $err) = program('capture', $pid);
is($status, 0, 'capture of a backend') or diag($err);
like($out, $FRAME, 'its frames');
like($out, qr/\bin\s+PostgresMain\+0x/, 'and what it is');
($status, $out) = program('capture', '--format', 'brief', $pid);
like($out, qr/^process $pid\b.*\n  waits for the next statement of the client\n.*^  PostgresMain$/ms, 'for people');
($status, $out) = program('capture', '--stop', '--format', 'json', '--repeat', 3, $pid);
is(() = $out =~ /^\{"pid":$pid,.*?"engine":"stop","pause_us":[\d.]+,.*?"threads":\[\{"tid":$pid,.*"stop_reason":"end of stack"/mg,
	3, 'three times as JSON');
($status, $out) = program('capture', '--format', 'folded', '--repeat', 20, $pid);
like($out, qr/^postgres;.*;PostmasterMain;.*;PostgresMain;\S+ 20$/, 'twenty times counted, for a flame graph');
is($out =~ tr/\n//, 1, 'on one line, since it waits');
($status, $out) = program('capture', '--stats', '--repeat', 50, $pid);
like($out, qr/^\{"count":50,"pause_us":\{"p50":[\d.]+,"p99":[\d.]+,"max":[\d.]+\},.*"unwind_us"/, 'figures');

# After SIGINT the program prints its results so far.
sub interrupted
{
	my @args = @_;
	my ($told, $complaint) = ('', '');
	my $switches = sub { my %s = proc_status($pid); return $s{voluntary_ctxt_switches} };
	my $before   = $switches->();
	my $run      = IPC::Run::start([ $program, 'capture', '--stop', '--repeat', 1_000_000, '--interval', '1ms', @args, $pid ],
		'<', \undef, '>', \$told, '2>', \$complaint);
	wait_until('some captures', sub { $switches->() > $before + 20 });    # a stop is a switch
	$run->signal('INT');
	$run->finish;
	is($run->full_result >> 8, 1, "@args: interrupted");
	is($complaint, "pg_stat_backtrace: interrupted\n", 'which is said');
	return $told;
}
like(interrupted('--stats'), qr/^\{"count":\d\d+,/, 'the figures until then');
like(interrupted('--format', 'folded'), qr/^postgres;.*;PostgresMain;\S+ \d\d+$/, 'the stacks until then');

# A stopped capture (^Z), in its own process group as a shell's job, must not keep the backend stopped. It must work
# after SIGCONT.
{
	my $told = '';
	my $run = IPC::Run::start([ $program, 'capture', '--stop', '--repeat', 1_000_000, '--stats', $pid ],
		'<', \undef, '>', \$told, init => sub { POSIX::setpgid(0, 0) });
	my $job = $run->{KIDS}[0]{PID};
	my $switches = sub { my %s = proc_status($pid); return $s{voluntary_ctxt_switches} };
	my %held;
	for my $round (1 .. 50)
	{
		my $before = $switches->();
		wait_until('some captures', sub { $switches->() > $before + 20 });
		kill 'TSTP', $job;
		wait_until('it is suspended', sub { my %s = proc_status($job); return $s{State} =~ /^T/ });
		my %s = proc_status($pid);
		$held{"$s{State}, tracer $s{TracerPid}"} = 1 if $s{TracerPid} || $s{State} =~ /^t/i;
		kill 'CONT', $job;
	}
	is_deeply([ keys %held ], [], 'while it is suspended, no process is held');
	$run->signal('INT');
	$run->finish;
	like($told, qr/^\{"count":\d{3}/, 'and it has gone on each time');    # a capture is at most two switches
}

my ($postmaster) = slurp_file("$data/postmaster.pid") =~ /^(\d+)/;
($status, $out) = program('capture', $postmaster);
is($status, 0, 'the postmaster, which SQL refuses');
like($out, qr/\bin\s+PostmasterMain\+0x/, 'and its stack');
my %after = proc_status($postmaster);
is($after{TracerPid}, 0, 'it is not traced afterwards');
unlike($after{State}, qr/t/i, 'nor stopped');
($status, undef, $err) = program('capture', 2147483647);
is($status, 1, 'a process that does not exist');
like($err, qr/there is no process \d+/, 'which is said');

# Doctor: before, with, and after the extension and the worker.
($status, $out) = program('doctor', '-D', $data, $where);
is($status, 0, 'doctor: nothing keeps captures from working') or diag($out);
like($out, qr/^ok\s+server:\s+PostgreSQL \d+ in \Q$data\E/m, 'the server');
like($out, qr/^\w+\s+symbols:\s+\d+\.\d % of the \d+ functions/m, 'the share of functions that have a name');
like($out, qr/^ok\s+capture:\s+process \d+ .*: \d+ frames, stopped for [\d.]+ us$/m, 'a capture');
like($out, qr/^warn\s+worker:.*\n\s+-> Start it: .*-D \Q$data\E$/m, 'no worker, and how to start it');
like($out, qr/^warn\s+extension:.*\n\s+-> psql .*CREATE EXTENSION pg_stat_backtrace/m, 'no extension, and how to create it');
$node->safe_psql('postgres', 'CREATE EXTENSION pg_stat_backtrace');
my $worker = Worker->start($node);
($status, $out) = program('doctor', '-D', $data, $where);
is($status, 0, 'doctor: all is well') or diag($out);
like($out, qr/^ok\s+worker:\s+process @{[$worker->pid]}, version \S+, spool \//m, 'the worker');
like($out, qr/^ok\s+rights:\s+the worker runs as user id $<; .*a seccomp filter: yes$/m, 'what it may do');
like($out, qr/^ok\s+extension:\s+version 1\.2 in database "postgres"/m, 'the extension');
$node->safe_psql('postgres', q{DROP EXTENSION pg_stat_backtrace; CREATE EXTENSION pg_stat_backtrace VERSION '1.0'});
($status, $out) = program('doctor', '-D', $data, $where);
like($out, qr/^warn\s+extension:\s+version 1\.0 .*\n\s+-> psql .*ALTER EXTENSION pg_stat_backtrace UPDATE/m, 'an old extension');
$session->quit;
$worker->stop;
$node->stop;
($status, $out) = program('doctor', '-D', $data);
is($status, 1, 'doctor: no server');
like($out, qr/^FAIL\s+server:.*no server is running/m, 'which is said');

done_testing();
