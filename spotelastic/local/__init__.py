"""The local cloud: AWS as far as spotelastic needs it, on one Linux machine.

    cloud.py        start, find and stop it; what a laptop process needs to use it
    __main__.py     the process; server.py puts it together
    completions/    every change to moto, one file per service, and the list with the reasons
    machines.py     instances: launch, run, stop, terminate; addresses, volumes and interfaces
    hypervisor.py   a process of its own that runs an instance's processes and ends them
    imds.py         the metadata service of every instance; metadata.py says what is in it
    planner.py      pure: what an Auto Scaling group does next; groups.py does it
    members.py      moto's groups and members, read and added to; activities.py what they tried
    capacity.py     how many instances of a type a zone has left, and their prices
    eventbridge_messages.py       what EventBridge is told
    fault_client.py       interruptions and other faults, and the client that asks for them

Every call to EC2, Auto Scaling, CloudFormation and EventBridge, and every timer, runs under one
lock: moto is not thread-safe. Only the metadata service answers outside it.
"""
