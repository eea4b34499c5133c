"""The local cloud: emulates the parts of AWS that spotelastic needs, on one Linux machine.

    cloud.py        starts, finds and stops it; what a command needs to use it
    __main__.py     its process; server.py assembles the parts
    users.py        counts its users, so that it ends with the last; joining.py is a command's side
    fault_client.py interruptions and other faults on request; drill.py: a fixed sequence of them
    admission.py    who is let in; signatures.py: what a signature proves; refusals.py: how a
                    call is refused
    moto_patches/   every change to moto, one file per service, listed with the reasons
    instances/      machines.py: launch, run, stop, terminate; hypervisor.py: a separate process
                    that runs and ends the instances' processes; imds.py: their metadata services;
                    spot_market.py: how many more fit into a zone, and prices
    autoscaling/    planner.py (pure): what a group does next; groups.py does it; members.py:
                    moto's groups and members; activities.py: what they have tried
    base/           timers, events, child processes, objects that outlive the cloud

Every call to EC2, Auto Scaling, CloudFormation and EventBridge, and every timer, runs under one
lock, because moto is not thread-safe. Only the metadata service answers outside of it.
"""
