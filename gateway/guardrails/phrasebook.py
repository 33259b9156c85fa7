"""The words of attempts to steer a model past its instructions: Spanish, English, and the commonest in Portuguese.

Data only; `phrases` reads it. A rule is a line of words: `<name>` is one of the words of that list, `~3` at most three
words of any kind, `a|b` either, `_` a space inside an alternative, `*` the rest of a word. All without accents.
"""

from __future__ import annotations

LISTS = {
    # English
    "ignore": "ignore ignoring disregard disregarding forget override bypass discard do_not_follow don_t_follow "
    "stop_following do_not_obey",
    "previous": "previous prior above earlier preceding original initial system developer foregoing",
    "rules": "instruction* rule rules prompt prompts directive* guideline* order orders message messages training "
    "programming policy policies restriction* constraint*",
    "before": "above before you_were you_have_been you_know i_said that_was",
    "new": "new updated real true",
    "takes_over": "follow begin override supersede are_as_follows",
    "obey": "you act respond answer obey",
    "show": "reveal show print repeat display output tell_me give_me leak reproduce write_out what_is what_are "
    "what_was what_were",
    "hidden": "initial original hidden secret system developer internal",
    "be": "act behave respond answer pretend roleplay play you_are be become",
    "free": "unrestricted unfiltered uncensored amoral jailbroken without_restrictions without_any_restrictions",
    "assistant": "ai assistant model chatbot bot llm character persona",
    "without": "without with_no free_of free_from has_no have_no not_bound_by",
    "limits": "restriction* filter filters ethics ethical_guidelines guidelines limitation* limits censorship "
    "morals safety_rules content_policy",
    "god": "developer god jailbreak unrestricted dan sudo",
    "on": "enabled activated engaged output is_on is_now",
    "evade": "bypass evade circumvent disable turn_off remove get_around",
    "safety": "safety content ethical moderation",
    "guards": "filter* guidelines guardrails policies policy restrictions measures",
    # Spanish and Portuguese
    "ignora": "ignora ignorad ignorar ignore ignoren ignorem olvida olvidad olvidar olvide olviden omite omitir "
    "descarta descartad desobedece desestima pasa_por_alto haz_caso_omiso_de hagan_caso_omiso_de "
    "haciendo_caso_omiso_de no_hagas_caso_a no_hagas_caso_de no_sigas saltate esqueca",
    "reglas": "instruccion instrucciones regla reglas indicacion indicaciones ordenes directrices directivas normas "
    "restriccion restricciones politicas limitaciones filtros instrucoes regras restricoes",
    "anteriores": "anterior anteriores previas previos iniciales originales precedentes de_arriba del_sistema "
    "de_sistema recibidas dadas que_te_dieron que_te_han_dado que_te_di que_te_dio hasta_ahora "
    "anteriormente de_seguridad",
    "todas": "todas todos tus sus as_suas todas_las todas_tus todas_sus todas_as cualquier",
    "lo_dicho": "lo_anterior lo_que_te lo_que_se lo_que_hemos cuanto",
    "desde_ahora": "a_partir_de_ahora desde_ahora de_ahora_en_adelante",
    "obedece": "obedeceras obedece obedeces responderas actuaras eres",
    "solo_a_mi": "solo_a_mi solo_mis_ordenes sin_restricciones sin_filtros sin_limites sin_censura",
    "muestra": "revela revelame muestra muestrame imprime repite repiteme dime ensename escribe copia copiame dame "
    "cuales_son cual_es mostra mostre",
    "prompt_oculto": "prompt_de_sistema prompt_del_sistema prompt_do_sistema system_prompt prompt_inicial "
    "prompt_oculto prompt_interno mensaje_de_sistema mensaje_del_sistema",
    "ocultas": "iniciales ocultas internas originales secretas de_sistema del_sistema de_desarrollador",
    "asistente": "ia inteligencia_artificial asistente modelo chatbot bot personaje",
    "sin": "sin libre_de que_no_tiene no_tiene carece_de sem",
    "limites": "restriccion restricciones filtro filtros censura etica limites limitaciones moral reglas restricoes",
    "responde": "responde actua contesta habla comportate escribe finge simula respondeme contestame",
    "activa": "activa entra_en habilita inicia pasa_a pon active ativa ative activado",
    "dios": "desarrollador dios sin_censura sin_restricciones sin_filtros sin_limites jailbreak dan desenvolvedor",
    "evita": "evade elude desactiva burla salta saltate quita elimina esquiva",
    "barreras": "filtros restricciones protecciones barreras medidas politicas salvaguardas",
    "eres": "you_are act_as pretend_to_be eres actua_como seras finge_ser",
    "dan_what": "do que an una a mode modo y and now ahora",
    # Marks of chat templates, as they read without their punctuation
    "template_marks": "im_start im_end start_header_id end_header_id eot_id inst_sys",
}
RULES = {
    "prompt_injection": (
        "<ignore> ~3 <previous> ~3 <rules>",
        "<ignore> ~1 all|any|your|these ~2 <rules>",
        "ignore|disregard|forget everything|all|anything <before>",
        "<new> instructions|system_prompt|system_instructions <takes_over>",
        "from_now_on ~4 <obey> ~8 <free>",
        "end|begin of ~1 system prompt|instructions|message",
        "<ignora> ~3 <reglas> ~3 <anteriores>",
        "<ignora> ~1 <todas> ~1 <reglas>",
        "ignora|olvida|olvidate_de|ignore|olvide todo <lo_dicho>",
        "nuevas|verdaderas instrucciones del_sistema|de_sistema|a_continuacion|reemplazan|sustituyen|anulan",
        "<desde_ahora> ~4 <obedece> ~6 <solo_a_mi>",
        "fin|inicio del|de ~1 sistema|instrucciones_del_sistema|mensaje_del_sistema",
        "<template_marks>",
    ),
    "prompt_extraction": (
        "<show> ~3 system_prompt|system_message|hidden_prompt|initial_prompt",
        "<show> ~3 <hidden> instruction*|prompts|rules",
        "repeat|print|output ~3 words|text|everything|lines above|before_this",
        "<muestra> ~3 <prompt_oculto>",
        "<muestra> ~3 instrucciones|instrucoes <ocultas>",
    ),
    "jailbreak": (
        "do_anything_now",
        "<eres> ~1 dan ~1 <dan_what>",
        "<god> mode <on>",
        "enable|activate|enter|switch_to|engage ~2 <god> mode",
        "<be> ~6 <free>",
        "<assistant> ~3 <without> ~3 <limits>",
        "<evade> ~3 <safety> <guards>",
        "<activa> ~2 modo <dios>",
        "modo <dios> activado|habilitado|ativado",
        "<asistente> ~4 <sin> ~3 <limites>",
        "<responde> ~5 sin ~2 restricciones|filtro|filtros|censura|limites_eticos|etica|advertencias_eticas",
        "<evita> ~3 <barreras> de|del seguridad|contenido|moderacion|etica|modelo",
    ),
}
