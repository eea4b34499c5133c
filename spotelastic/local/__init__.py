"""The local cloud: AWS as far as spotelastic needs it, on one Linux machine.

    cloud.py        start, find and stop it; what a laptop process needs to use it
    __main__.py     the process; server.py puts it together
    users.py        who uses it, so that it ends with the last; joining.py is a command's side
    fault_client.py interruptions and other faults, and the client that asks for them; drill.py
    moto_patches/   every change to moto, one file per service, and the list with the reasons
    instances/      machines.py: launch, run, stop, terminate; hypervisor.py, a process of its own
                    that runs and ends their processes; imds.py, the metadata service of each;
                    capacity.py, how many a zone has left
    autoscaling/    planner.py, pure: what a group does next; groups.py does it; members.py, moto's
                    groups and members; activities.py, what they tried
    iam/            what a role may do
    base/           timers, events, child processes, and objects that outlive the cloud

Every call to EC2, Auto Scaling, CloudFormation and EventBridge, and every timer, runs under one
lock: moto is not thread-safe. Only the metadata service answers outside it.
"""
