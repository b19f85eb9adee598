# The state of targets after a capture, and targets that end, are stopped, or get signals during the capture.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use IPC::Run;
use Test::More;
use Worker qw($FRAME call proc_status wait_until backend_pid);

my $node = PostgreSQL::Test::Cluster->new('lifecycle');
$node->init;
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION pg_stat_backtrace');
my $worker = Worker->start($node);

# is_untouched($pid, $what): the process is not stopped and not traced.
sub is_untouched
{
	my ($pid, $what) = @_;
	my %status = proc_status($pid);
	isnt($status{State}, 'T', "$what: not stopped");
	isnt($status{State}, 't', "$what: not in a tracing stop");
	is($status{TracerPid}, 0, "$what: not traced");
	return;
}

# Three captures of a sleeping and of a computing backend, one after another.
my $sleeper = $node->background_psql('postgres');
my $asleep  = backend_pid($sleeper);
my $computer = $node->background_psql('postgres');
my $busy     = backend_pid($computer);
$computer->query_until(qr/started/, "\\echo started\nSELECT count(*) FROM (SELECT generate_series(1, 1000000000000)) x;\n");
$node->poll_query_until('postgres', "SELECT state = 'active' FROM pg_stat_activity WHERE pid = $busy")
  or die 'the backend is not busy';
for my $target ([ 'a sleeping backend', $asleep ], [ 'a computing backend', $busy ])
{
	my ($what, $pid) = @$target;
	for my $round (1 .. 3)
	{
		my ($out, undef, undef, $stderr) = call($node, "SELECT pg_get_backtrace($pid)");
		like($out, $FRAME, "$what, round $round: a stack") or diag($stderr);
		is_untouched($pid, "$what, round $round");
	}
}
is($node->safe_psql('postgres', "SELECT state FROM pg_stat_activity WHERE pid = $busy"), 'active', 'it still computes');

# A target in state T: it has a stack, and stays stopped.
kill 'STOP', $asleep;
wait_until('the backend to be stopped', sub { my %s = proc_status($asleep); $s{State} eq 'T' });
my ($out, $level, $state, $stderr) = call($node, "SELECT pg_get_backtrace($asleep)");
like($out, $FRAME, 'a stopped process has a stack') or diag($stderr);
# After the detach, the kernel has it run to its stop again.
wait_until('the backend to be in its stop again', sub { my %s = proc_status($asleep); $s{State} ne 'R' });
my %status = proc_status($asleep);
is("$status{State} $status{TracerPid}", 'T 0', 'and stays stopped, untraced');
kill 'CONT', $asleep;
wait_until('the backend to go on', sub { my %s = proc_status($asleep); $s{State} ne 'T' });
is($sleeper->query('SELECT 1'), '1', 'it answers after SIGCONT');

# Signals are not lost: notifications reach a listener during the captures.
$sleeper->query('LISTEN bell');
my $captures = IPC::Run::start(
	[ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-c',
		"SELECT count(pg_get_backtrace($asleep)) FROM generate_series(1, 300)" ],
	'>', \my $counted, '2>', \my $errors);
$node->safe_psql('postgres', "NOTIFY bell, '$_'") for 1 .. 50;
$captures->finish;
is($counted, "300\n", '300 captures while signals arrive') or diag($errors);
my $heard = $sleeper->query('SELECT 1');
$heard .= $sleeper->query('SELECT 1');
my %bells = map { $_ => 1 } $heard =~ /payload "(\d+)"/g;
is(scalar keys %bells, 50, 'and all 50 notifications arrive');
is_untouched($asleep, 'a signalled backend');

# A target that has ended is not a process of the cluster.
my $brief = $node->background_psql('postgres');
my $gone  = backend_pid($brief);
$brief->quit;
wait_until('the backend to end', sub { !-e "/proc/$gone" });
($out, $level) = call($node, "SELECT pg_get_backtrace($gone) IS NULL");
is("$out $level", 't WARNING', 'a backend that has ended: WARNING and NULL');

# Targets that end during the capture give a stack, a warning, or ERROR 55000, and never another error.
my %seen;
for my $round (1 .. 5)
{
	my $victim = $node->background_psql('postgres');
	my $pid    = backend_pid($victim);
	my ($stdout, $err) = ('', '');
	my $run = IPC::Run::start(
		[ 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-d', $node->connstr('postgres'), '-c',
			"SELECT left(pg_get_backtrace($pid), 2) FROM generate_series(1, 400)" ],
		'>', \$stdout, '2>', \$err);
	$node->poll_query_until('postgres', "SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE 'SELECT left%'")
	  or die 'no captures';
	$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	$run->finish;
	my @answers = $err =~ /\b(ERROR:\s+\w{5}|WARNING)/g;
	$seen{$_}++ for @answers;
	eval { $victim->quit };
}
note explain \%seen;
is_deeply([ grep { !/^(ERROR:\s+55000|WARNING)$/ } keys %seen ], [], 'a target that ends in a capture: 55000 or a warning only');

$node->safe_psql('postgres', "SELECT pg_terminate_backend($busy)");
eval { $computer->quit };
$sleeper->quit;
$worker->stop;
$node->stop;
done_testing();
